//! slime-convert from the outside: what it makes, what it shows, and what it says about broken input.

#[path = "fixtures/families.rs"]
mod families;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use families::FAMILIES;
use slime_weights::WeightDir;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn convert(args: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-convert")).args(args).output().expect("slime-convert starts")
}

fn convert_ok(args: &[&Path]) -> String {
    let output = convert(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("stdout is text")
}

/// The message of a run that ends with `code`, one line (and perhaps a hint) without any temporary left behind.
fn refusal(code: i32, src: &Path) -> String {
    let root = tempfile::tempdir().expect("a temporary directory");
    let output = convert(&[Path::new("import"), src, &root.path().join("out")]);
    let message = String::from_utf8(output.stderr).expect("stderr is text");
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.starts_with("slime-convert: error: "), "{message}");
    assert!(message.lines().skip(1).all(|line| line.starts_with("slime-convert: hint: ")), "{message}");
    assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 0, "something was left behind");
    message
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
}

#[test]
fn gguf_values_are_those_of_the_gguf_package() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let out = root.path().join("tiny");
    convert_ok(&[Path::new("import"), &fixture("gguf/tiny.gguf"), &out]);
    let (got, expected) = (
        WeightDir::open(&out).expect("the import opens"),
        WeightDir::open(fixture("gguf/expected.safetensors")).expect("the fixture opens"),
    );
    assert_eq!(got.names().collect::<Vec<_>>(), expected.names().collect::<Vec<_>>());
    for name in expected.names() {
        let (got, expected) = (got.tensor(name).expect("there"), expected.tensor(name).expect("there"));
        assert_eq!((got.shape, got.bytes), (expected.shape, expected.bytes), "{name}");
    }
}

/// The fixture holds the first rows of each tensor.
#[test]
fn gguf_of_mixed_k_types_is_imported_bit_by_bit() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let out = root.path().join("mixed");
    convert_ok(&[Path::new("import"), &fixture("gguf/mixed.gguf"), &out]);
    let (got, expected) = (
        WeightDir::open(&out).expect("the import opens"),
        WeightDir::open(fixture("gguf/mixed.safetensors")).expect("the fixture opens"),
    );
    assert_eq!(got.names().collect::<Vec<_>>(), expected.names().collect::<Vec<_>>());
    for name in expected.names() {
        let (got, expected) = (got.tensor(name).expect("there"), expected.tensor(name).expect("there"));
        assert_eq!(got.shape[1..], expected.shape[1..], "{name}");
        assert_eq!(got.bytes[..expected.bytes.len()], *expected.bytes, "{name}");
    }
}

#[test]
fn gguf_metadata_becomes_the_files_of_hugging_face() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let out = root.path().join("tiny");
    convert_ok(&[
        Path::new("import"),
        &fixture("gguf/tiny.gguf"),
        &out,
        Path::new("--dtype"),
        Path::new("bf16"),
    ]);
    let config = json(&out.join("config.json"));
    assert_eq!(config["rope_theta"], 100_000.0);
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!((&config["torch_dtype"], &config["tie_word_embeddings"]), (&"bfloat16".into(), &true.into()));
    assert_eq!(json(&out.join("generation_config.json"))["eos_token_id"], 2);
    let tokenizer = json(&out.join("tokenizer_config.json"));
    assert_eq!(
        (&tokenizer["bos_token"], &tokenizer["eos_token"]),
        (&"<|im_start|>".into(), &"<|im_end|>".into())
    );
    assert!(tokenizer["chat_template"].as_str().expect("a template").contains("<|im_end|>"));
    assert_eq!(tokenizer["added_tokens_decoder"]["264"]["special"], false);
    let weights = WeightDir::open(&out).expect("the import opens");
    assert!(
        weights.names().all(|name| weights.info(name).expect("there").dtype == slime_weights::Dtype::BF16)
    );
}

#[test]
fn directory_survives_import_and_export_bit_by_bit() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let (a, b) = (root.path().join("a"), root.path().join("b"));
    let src = fixture("models/qwen3");
    convert_ok(&[Path::new("import"), &src, &a]);
    convert_ok(&[Path::new("export"), &a, &b, Path::new("--origin-hf"), &src]);
    assert_eq!(convert_ok(&[Path::new("diff"), &src, &b]), "");
    assert_eq!(json(&src.join("config.json")), json(&b.join("config.json")));
}

/// Every family in bf16, experts split and in one tensor, tensors of layers that are not computed: through import and export
/// bit by bit, with the files beside the weights.
#[test]
fn every_family_survives_import_and_export_bit_by_bit() {
    for family in FAMILIES {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (src, a, b) = (root.path().join("src"), root.path().join("a"), root.path().join("b"));
        let bf16 = [Path::new("--dtype"), Path::new("bf16")];
        convert_ok(&[&[Path::new("import"), &fixture("models").join(family), &src], &bf16[..]].concat());
        fs::write(src.join("tokenizer.json"), "{\"version\": \"1.0\"}").expect("writable");
        fs::write(src.join("chat_template.jinja"), "{{ messages }}").expect("writable");
        let output = convert(&[Path::new("import"), &src, &a]);
        assert!(output.status.success(), "{family}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!told.contains("does not use it"), "{family}: {told}");
        convert_ok(&[Path::new("export"), &a, &b, Path::new("--origin-hf"), &src]);
        let (want, got) = (WeightDir::open(&src).expect("opens"), WeightDir::open(&b).expect("opens"));
        assert_eq!(want.names().collect::<Vec<_>>(), got.names().collect::<Vec<_>>(), "{family}");
        for name in want.names() {
            let (want, got) = (want.tensor(name).expect("there"), got.tensor(name).expect("there"));
            let is_bias = name.ends_with("e_score_correction_bias");
            assert_eq!(want.dtype == slime_weights::Dtype::F32, is_bias, "{family}: {name}");
            assert_eq!(
                (want.dtype, want.shape, want.bytes),
                (got.dtype, got.shape, got.bytes),
                "{family}: {name}"
            );
        }
        for file in ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"] {
            let content = |dir: &Path| fs::read(dir.join(file)).ok();
            assert_eq!(content(&src), content(&b), "{family}: {file}");
        }
    }
}

#[test]
fn shards_are_named_and_indexed_as_hugging_face_does_and_read_like_one_file() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let (src, out, back) = (fixture("models/qwen3"), root.path().join("out"), root.path().join("back"));
    let size = [Path::new("--max-shard-size"), Path::new("10KB")];
    convert_ok(&[&[Path::new("export"), &src, &out], &size[..]].concat());
    let index = json(&out.join("model.safetensors.index.json"));
    let weights = WeightDir::open(&src).expect("the fixture opens");
    let sizes: BTreeMap<&str, usize> =
        weights.names().map(|name| (name, weights.tensor(name).expect("there").bytes.len())).collect();
    assert_eq!(index["metadata"]["total_size"], sizes.values().sum::<usize>());
    let mut shards: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (name, file) in index["weight_map"].as_object().expect("an object") {
        shards.entry(file.as_str().expect("a name")).or_default().push(sizes[name.as_str()]);
    }
    let num = shards.len();
    assert!(num > 2, "{shards:?}");
    for (i, (file, sizes)) in shards.iter().enumerate() {
        assert_eq!(*file, format!("model-{:05}-of-{num:05}.safetensors", i + 1));
        assert!(sizes.iter().sum::<usize>() <= 10_000 || sizes.len() == 1, "{file}: {sizes:?}");
    }
    assert!(shards.values().any(|sizes| sizes[0] > 10_000), "no tensor is larger than the limit");
    assert_eq!(convert_ok(&[Path::new("diff"), &src, &out]), "");
    convert_ok(&[Path::new("import"), &out, &back]);
    assert!(back.join("model.safetensors").exists() && !back.join("model.safetensors.index.json").exists());
    assert_eq!(convert_ok(&[Path::new("diff"), &src, &back]), "");
    let output = convert(&[Path::new("export"), &src, &root.path().join("x"), size[0], Path::new("20")]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected a whole number with B, KB"));
}

#[test]
fn differences_are_named_and_counted() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let low = root.path().join("low");
    let src = fixture("models/llama");
    convert_ok(&[Path::new("import"), &src, &low, Path::new("--dtype"), Path::new("bf16")]);
    let output = convert(&[Path::new("diff"), &src, &low]);
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.lines().all(|line| line.contains("F32 | BF16: max |a - b|")), "{table}");
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains(&format!("{} tensors differ", table.lines().count()))
    );
}

#[test]
fn inspect_counts_parameters() {
    let report = convert_ok(&[Path::new("inspect"), &fixture("gguf/tiny.gguf"), Path::new("--json")]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let sizes = report["tensors"].as_array().expect("a list").iter().map(|tensor| {
        let shape = tensor["shape"].as_array().expect("a list");
        shape.iter().map(|dim| dim.as_u64().expect("a size")).product::<u64>()
    });
    assert_eq!(report["num_parameters"], sizes.sum::<u64>());
    assert_eq!(report["format"], "gguf");
    let table = convert_ok(&[Path::new("inspect"), &fixture("models/llama")]);
    assert!(table.contains("model.layers.0.self_attn.q_proj.weight"), "{table}");
}

#[test]
fn broken_gguf_files_give_one_error_each() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let file = root.path().join("x.gguf");
    let bytes = fs::read(fixture("gguf/tiny.gguf")).expect("readable");
    for len in [0, 3, 6, 20, 200, 4000, bytes.len() / 2, bytes.len() - 40] {
        fs::write(&file, &bytes[..len]).expect("writable");
        refusal(65, &file);
    }
    fs::write(&file, &bytes[..bytes.len() - 40]).expect("writable");
    assert!(refusal(65, &file).contains("truncated"));
    let name = b"blk.0.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the tensor is listed");
    let mut unknown = bytes.clone();
    // Behind the name: the number of dimensions (4 bytes), two dimensions (8 each), then the type.
    unknown[at + name.len() + 20] = 23;
    fs::write(&file, unknown).expect("writable");
    let message = refusal(65, &file);
    assert!(message.contains("unsupported GGUF type IQ4_XS of tensor blk.0.ffn_up.weight"), "{message}");
    assert!(message.contains("hint: read are F32, F16, BF16, Q4_0,"), "{message}");
}

#[test]
fn broken_directories_give_one_error_each() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let dir = root.path().join("w");
    assert!(refusal(66, &dir).contains("cannot open"));
    fs::create_dir(&dir).expect("writable");
    assert!(refusal(66, &dir).contains("found none"));
    let good = fs::read(fixture("models/llama/model.safetensors")).expect("readable");
    fs::write(dir.join("model.safetensors"), &good).expect("writable");
    assert!(refusal(66, &dir).contains("config.json"));
    fs::copy(fixture("models/llama/config.json"), dir.join("config.json")).expect("writable");
    fs::write(dir.join("model.safetensors"), &good[..good.len() - 1]).expect("writable");
    assert!(refusal(65, &dir).contains("truncated"));
    let mut nan = good.clone();
    let end = nan.len();
    nan[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(dir.join("model.safetensors"), nan).expect("writable");
    assert!(refusal(65, &dir).contains("is not a finite number"));
    fs::copy(fixture("models/qwen3/model.safetensors"), dir.join("model.safetensors")).expect("writable");
    refusal(65, &dir);
}

#[test]
fn target_that_exists_is_refused_and_kept() {
    let root = tempfile::tempdir().expect("a temporary directory");
    fs::write(root.path().join("precious"), "x").expect("writable");
    let output = convert(&[Path::new("import"), &fixture("models/llama"), root.path()]);
    assert_eq!(output.status.code(), Some(73));
    assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 1);
}

#[test]
fn imported_tokenizer_gives_the_ids_of_the_tokenizers_package() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let out = root.path().join("tiny");
    convert_ok(&[Path::new("import"), &fixture("gguf/tiny.gguf"), &out]);
    let tokenizer = slime_tokenizer::Tokenizer::from_dir(&out).expect("the tokenizer opens");
    let rows = json(&fixture("gguf/encodings.json"));
    for row in rows.as_array().expect("a list") {
        let text = row["text"].as_str().expect("text");
        let ids = tokenizer.encode(text).expect("encodes");
        assert_eq!(serde_json::json!(ids), row["ids"], "{text}");
        assert_eq!(tokenizer.decode(&ids, false).expect("decodes"), text);
    }
    assert_eq!(tokenizer.eos_ids(), [2]);
}
