//! What conversions rearrange: experts split and fused, vocabulary padded and cut, what an origin fills in; by several ranks the
//! same bytes as by one; killed in the middle nothing stays; and memory that does not grow with the model.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixtures/launcher.rs"]
mod launcher;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use slime_weights::{Dtype, TensorSpec, WeightDir, WeightWriter};

const CONVERT: &str = env!("CARGO_BIN_EXE_slime-convert");

fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(model)
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn convert(dir: &Path, line: &str) -> Output {
    Command::new(CONVERT).current_dir(dir).args(line.split(' ')).output().unwrap()
}

fn convert_ok(dir: &Path, line: &str) {
    let output = convert(dir, line);
    assert!(output.status.success(), "{line}: {}", told(&output));
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Names and bytes of all files of a directory.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn link(root: &Path, model: &str) {
    std::os::unix::fs::symlink(fixture(model), root.join(model)).unwrap();
}

#[test]
fn experts_are_split_and_fused_without_a_changed_bit() {
    for model in ["qwen3_moe", "glm4_moe", "minimax_m2"] {
        let root = tempfile::tempdir().unwrap();
        link(root.path(), model);
        convert_ok(root.path(), &format!("export {model} fused --experts fused --max-shard-size 10KB"));
        convert_ok(root.path(), "export fused split --experts split");
        convert_ok(root.path(), &format!("import {model} plain"));
        assert_eq!(files(&root.path().join("plain")), files(&root.path().join("split")), "{model}");
        let fused = WeightDir::open(root.path().join("fused")).unwrap();
        // Layers that predict further tokens are carried as they are.
        let is_carried = |name: &str| name.starts_with("model.layers.3.");
        assert!(fused.names().all(|name| is_carried(name) || !name.contains(".experts.0.")), "{model}");
        assert!(fused.names().any(|name| name.ends_with("mlp.experts.gate_up_proj")), "{model}");
    }
    // The fused form is that of transformers.
    let root = tempfile::tempdir().unwrap();
    link(root.path(), "qwen3_moe");
    convert_ok(root.path(), "export qwen3_moe fused --experts fused");
    let (got, want) = (
        WeightDir::open(root.path().join("fused")).unwrap(),
        WeightDir::open(fixture("qwen3_moe_fused")).unwrap(),
    );
    assert_eq!(got.names().collect::<Vec<_>>(), want.names().collect::<Vec<_>>());
    for name in want.names() {
        assert_eq!(got.tensor(name).unwrap().bytes, want.tensor(name).unwrap().bytes, "{name}");
    }
}

#[test]
fn vocabulary_is_padded_with_zeros_and_cut_again() {
    let root = tempfile::tempdir().unwrap();
    for model in ["qwen3", "glm4_moe"] {
        link(root.path(), model);
        convert_ok(root.path(), &format!("export {model} padded-{model} --vocab-size 128"));
        let padded = WeightDir::open(root.path().join(format!("padded-{model}"))).unwrap();
        let head = padded.tensor("lm_head.weight").unwrap();
        assert_eq!(head.shape[0], 128);
        assert!(head.bytes[96 * head.shape[1] * 4..].iter().all(|byte| *byte == 0));
        assert_eq!(json(&root.path().join(format!("padded-{model}/config.json")))["vocab_size"], 128);
        convert_ok(root.path(), &format!("export padded-{model} cut-{model} --origin-hf {model}"));
        convert_ok(root.path(), &format!("import {model} plain-{model}"));
        assert_eq!(
            files(&root.path().join(format!("cut-{model}"))),
            files(&root.path().join(format!("plain-{model}")))
        );
    }
    // A token of the tokenizer keeps its row.
    fs::create_dir(root.path().join("spoken")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("qwen3").join(name), root.path().join("spoken").join(name)).unwrap();
    }
    let tokenizer =
        json!({"model": {"vocab": {"a": 0, "b": 90}}, "added_tokens": [{"id": 93, "content": "<end>"}]});
    fs::write(root.path().join("spoken/tokenizer.json"), tokenizer.to_string()).unwrap();
    let output = convert(root.path(), "export spoken x --vocab-size 93");
    assert_eq!(output.status.code(), Some(65));
    assert!(
        told(&output).contains("the tokenizer has ids up to 93") && told(&output).contains("--vocab-size 94"),
        "{}",
        told(&output)
    );
    convert_ok(root.path(), "export spoken x --vocab-size 94");
}

#[test]
fn origin_fills_in_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    link(root.path(), "glm4_moe");
    convert_ok(root.path(), "import glm4_moe whole");
    let whole = WeightDir::open(root.path().join("whole")).unwrap();
    // Without the layers that predict further tokens, one norm and every file beside the weights.
    let is_left = |name: &&str| !name.starts_with("model.layers.3.") && *name != "model.norm.weight";
    let names: Vec<&str> = whole.names().filter(is_left).collect();
    assert!(names.len() + 1 < whole.names().count());
    let spec = |name: &&str| {
        let info = whole.info(name).unwrap();
        TensorSpec { name: (*name).to_owned(), dtype: info.dtype, shape: info.shape.clone() }
    };
    let mut writer =
        WeightWriter::create(root.path().join("part"), names.iter().map(spec).collect(), 1 << 30).unwrap();
    for name in &names {
        writer.write(name, &whole.tensor(name).unwrap().bytes).unwrap();
    }
    writer.finish().unwrap();
    convert_ok(root.path(), "export part filled --origin-hf glm4_moe");
    assert_eq!(files(&root.path().join("filled")), files(&root.path().join("whole")));
    let output = convert(root.path(), "import part x");
    assert_eq!(output.status.code(), Some(66), "{}", told(&output));
}

/// `num_ranks` ranks of slime-convert.
fn mpirun(num_ranks: usize) -> Option<Command> {
    let mut command = launcher::mpirun(num_ranks)?;
    command.arg(CONVERT);
    Some(command)
}

#[test]
fn several_ranks_write_the_bytes_of_one() {
    if mpirun(2).is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for model in
        ["llama", "qwen2", "qwen3", "qwen3_moe", "glm4", "glm4_moe", "glm45_air", "minimax_m2", "mimo"]
    {
        link(root.path(), model);
        for (form, ranks) in [("bf16 --experts fused", vec![2, 3]), ("int4_gptq --group-size 16", vec![3])] {
            let more = format!("--dtype {form} --max-shard-size 10KB");
            let name = |ranks: usize| format!("{model}-{}-{ranks}", &form[..4]);
            convert_ok(root.path(), &format!("export {model} {} {more}", name(1)));
            let one = files(&root.path().join(name(1)));
            assert!(one.len() > 4, "{model}: {} files", one.len());
            for ranks in ranks {
                let line = format!("export {model} {} {more}", name(ranks));
                let mut command = mpirun(ranks).unwrap();
                let output = command.current_dir(root.path()).args(line.split(' ')).output().unwrap();
                assert!(output.status.success(), "{line}: {}", told(&output));
                assert!(files(&root.path().join(name(ranks))) == one, "{line}: other bytes");
            }
        }
    }
    let mut command = mpirun(2).unwrap();
    let output = command.current_dir(root.path()).args(["import", "none", "x"]).output().unwrap();
    assert!(!output.status.success() && told(&output).contains("none: "), "{}", told(&output));
}

/// A model of one tensor of `num_bytes`, of which only the header takes room on the disk.
fn sparse_model(dir: &Path, num_bytes: u64) {
    fs::create_dir(dir).unwrap();
    // Of no family: nothing is checked against it.
    fs::write(dir.join("config.json"), "{\"model_type\": \"sparse\"}").unwrap();
    let rows = num_bytes / 8192;
    let mut header = json!({
        "model.embed_tokens.weight": {"dtype": "BF16", "shape": [rows, 4096], "data_offsets": [0, num_bytes]},
        "model.norm.weight": {"dtype": "BF16", "shape": [4096], "data_offsets": [num_bytes, num_bytes + 8192]},
    })
    .to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = fs::File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + num_bytes + 8192).unwrap();
}

/// A GGUF file of a model whose three matrices of an MLP have `width` rows or columns, quantised zeros.
fn sparse_gguf(path: &Path, width: u64) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/tiny.gguf");
    let mut bytes = fs::read(fixture).unwrap();
    let behind = |bytes: &[u8], word: &str| {
        bytes.windows(word.len()).position(|part| part == word.as_bytes()).unwrap() + word.len()
    };
    let at = behind(&bytes, "llama.feed_forward_length") + 4;
    bytes[at..at + 4].copy_from_slice(&(width as u32).to_le_bytes());
    // The last tensor of the fixture ends before this.
    let mut offset = 17_984_u64;
    for (name, place, bytes_of_block) in [("gate", 1, 20), ("up", 1, 18), ("down", 0, 34)] {
        // Dimensions, type and offset: the width is the second dimension, or for the last matrix the first.
        let at = behind(&bytes, &format!("blk.0.ffn_{name}.weight")) + 4;
        bytes[at + 8 * place..at + 8 * place + 8].copy_from_slice(&width.to_le_bytes());
        bytes[at + 20..at + 28].copy_from_slice(&offset.to_le_bytes());
        offset += width * bytes_of_block;
    }
    fs::write(path, &bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_len(offset + 8192).unwrap();
}

/// The line of `/proc/PID/status`, in kB.
fn peak_kb(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// The largest of what a running conversion was seen to take, until it ends.
fn peak_of(root: &Path, line: &str) -> u64 {
    let mut child = Command::new(CONVERT).current_dir(root).args(line.split(' ')).spawn().unwrap();
    let mut peak = 0;
    loop {
        peak = peak.max(peak_kb(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{line}");
            return peak;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn memory_does_not_grow_with_the_size_of_a_tensor() {
    let root = tempfile::tempdir().unwrap();
    sparse_model(&root.path().join("large"), 1 << 30);
    for more in ["", " --vocab-size 140000", " --dtype f32"] {
        let line = &format!("export large copy --origin-hf large{more}");
        let peak = peak_of(root.path(), line);
        assert!(peak < 256 << 10, "{line}: {peak} kB");
        fs::remove_dir_all(root.path().join("copy")).unwrap();
    }
    // Three matrices of a GiB each.
    sparse_gguf(&root.path().join("large.gguf"), 8 << 20);
    let line = "import large.gguf copy --dtype bf16";
    let peak = peak_of(root.path(), line);
    assert!(peak < 256 << 10, "{line}: {peak} kB");
}

#[test]
fn killed_conversion_leaves_no_target_and_the_next_one_starts_clean() {
    let root = tempfile::tempdir().unwrap();
    sparse_model(&root.path().join("src"), 256 << 20);
    let line = ["export", "src", "dst", "--origin-hf", "src"];
    let mut child =
        Command::new(CONVERT).current_dir(root.path()).args(line).stderr(Stdio::null()).spawn().unwrap();
    // Killed once it has begun to write.
    let has_begun = || {
        let entries = fs::read_dir(root.path()).unwrap().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp."))
            .any(|entry| entry.path().join("model.safetensors").exists())
    };
    while !has_begun() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!root.path().join("dst").exists());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "src and what was killed");
    convert_ok(root.path(), &line.join(" "));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "src and dst");
    let (src, dst) = (
        WeightDir::open(root.path().join("src")).unwrap(),
        WeightDir::open(root.path().join("dst")).unwrap(),
    );
    assert!(dst.names().all(|name| src.info(name).unwrap() == dst.info(name).unwrap()));
    assert_eq!(dst.info("model.norm.weight").unwrap().dtype, Dtype::BF16);
}
