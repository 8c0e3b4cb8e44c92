//! Weights in eight and four bits from the outside: read as others wrote them, written and read again, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixtures/families.rs"]
mod families;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use families::FAMILIES;
use serde_json::{Value, json};
use slime_config::TensorBox;
use slime_weights::{Dtype, WeightDir};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn convert(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-convert")).args(args).output().unwrap()
}

fn convert_ok(args: &[&str]) -> String {
    let output = convert(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// `expected.safetensors` is what the code of each format's own project reads.
#[test]
fn checkpoints_of_other_projects_are_read_bit_by_bit() {
    for form in ["fp8_block", "fp8_ct", "int4_awq", "int4_gptq", "int4_ct"] {
        let dir = fixture("quantised").join(form);
        let opened = WeightDir::open(&dir).unwrap();
        let expected = WeightDir::open(dir.join("expected.safetensors")).unwrap();
        let names: Vec<&str> = expected.names().collect();
        assert_eq!(opened.names().filter(|name| name.contains("_proj")).collect::<Vec<_>>(), names, "{form}");
        for name in names {
            let (got, expected) = (opened.tensor(name).unwrap(), expected.tensor(name).unwrap());
            assert_eq!((got.dtype, got.shape), (Dtype::BF16, expected.shape), "{form}: {name}");
            assert_eq!(got.bytes, expected.bytes, "{form}: {name}");
            // What ranks of a split model read: rows, and columns.
            let [rows, columns] = *got.shape else { panic!("{name} is no matrix") };
            let (whole, width) = (TensorBox::whole(got.shape), got.dtype.num_bytes());
            let half = opened.part(name, &whole.narrow(0, 1..rows / 2), Dtype::BF16).unwrap();
            assert_eq!(half[..], got.bytes[columns * width..rows / 2 * columns * width], "{form}: {name}");
            let columns_of_all = whole.narrow(1, 1..columns / 2);
            let middle = opened.part(name, &columns_of_all, Dtype::BF16).unwrap();
            let wanted = got.bytes.chunks(columns * width).flat_map(|row| &row[width..columns / 2 * width]);
            assert!(middle.iter().eq(wanted), "{form}: {name}");
        }
        assert!(opened.tensor("model.norm.weight").is_ok());
        opened.check_finite().unwrap();
    }
}

/// |a - b| / |a| of all elements of a tensor.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (difference / a.iter().map(|a| square(*a)).sum::<f64>().max(1e-30)).sqrt()
}

/// Every family through every form: matrices come near to what they were, the rest as bf16 exactly, and a second import says so.
#[test]
fn every_family_goes_through_every_form() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let mut missing = String::new();
    for family in FAMILIES {
        let mut worst = std::collections::BTreeMap::new();
        let root = tempfile::tempdir().unwrap();
        let place = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
        let (src, plain) = (fixture("models").join(family), place("plain"));
        convert_ok(&["import", src.to_str().unwrap(), &plain, "--dtype", "bf16", "--experts", "split"]);
        let want = WeightDir::open(&plain).unwrap();
        for (form, method, bound) in [
            ("fp8_block", "fp8", 0.04),
            ("fp8_tensor", "compressed-tensors", 0.04),
            ("int4_awq", "awq", 0.16),
            ("int4_gptq", "gptq", 0.16),
            ("int4_ct", "compressed-tensors", 0.16),
        ] {
            let (low, back) = (place(form), place(&format!("{form}.back")));
            convert_ok(&["export", &plain, &low, "--dtype", form, "--group-size", "16"]);
            let config = json(&Path::new(&low).join("config.json"));
            assert_eq!(config["quantization_config"]["quant_method"], method, "{family} {form}");
            convert_ok(&["import", &low, &back]);
            assert!(json(&Path::new(&back).join("config.json")).get("quantization_config").is_none());
            let (opened, got) = (WeightDir::open(&low).unwrap(), WeightDir::open(&back).unwrap());
            assert_eq!(want.names().collect::<Vec<_>>(), got.names().collect::<Vec<_>>(), "{family} {form}");
            let mut num_quantised = 0;
            for name in want.names() {
                let (want, got) = (want.tensor(name).unwrap(), got.tensor(name).unwrap());
                assert_eq!(opened.tensor(name).unwrap().bytes, got.bytes, "{family} {form} {name}");
                if opened.is_quantised(name) {
                    num_quantised += 1;
                    let far = distance(&want.to_f32().unwrap(), &got.to_f32().unwrap());
                    assert!(far < bound && far > 0.0, "{family} {form} {name}: {far}");
                    let worst = worst.entry(form).or_insert(0.0_f64);
                    *worst = worst.max(far);
                } else {
                    assert_eq!((want.dtype, want.bytes), (got.dtype, got.bytes), "{family} {form} {name}");
                }
            }
            let is_kept = |name: &str| {
                ["embed", "lm_head", "norm", "gate.weight", "bias"].iter().any(|word| name.contains(word))
            };
            assert!(num_quantised > 8, "{family} {form}");
            assert!(
                want.names().filter(|name| is_kept(name)).all(|name| !opened.is_quantised(name)),
                "{family} {form}"
            );
        }
        let row = format!(
            "| `{family}` | 1e-4 | 1e-3 | yes | yes | 1e-9 | {:.3} | {:.3} |\n",
            worst["fp8_block"], worst["int4_ct"]
        );
        if !readme.contains(&row) {
            missing += &row;
        }
    }
    assert!(missing.is_empty(), "the table in README.md should have these rows:\n{missing}");
}

#[test]
fn consumers_are_told_what_is_quantised_and_how() {
    let root = tempfile::tempdir().unwrap();
    let config = |form: &str, more: &[&str]| {
        let src = fixture("models/glm4_moe");
        let dst = root.path().join(format!("{form}{}", more.len()));
        let args =
            ["export", src.to_str().unwrap(), dst.to_str().unwrap(), "--dtype", form, "--group-size", "16"];
        convert_ok(&[&args[..], more].concat());
        json(&dst.join("config.json"))["quantization_config"].clone()
    };
    let kept = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
    let block = config("fp8_block", &[]);
    assert_eq!((&block["fmt"], &block["weight_block_size"]), (&json!("e4m3"), &json!([128, 128])));
    let names = kept(&block["modules_to_not_convert"]);
    assert!(
        names.contains(&"lm_head".to_owned()) && names.iter().any(|name| name.ends_with(".mlp.gate")),
        "{names:?}"
    );
    let tensor = config("fp8_tensor", &[]);
    assert_eq!(tensor["config_groups"]["group_0"]["weights"]["strategy"], "tensor");
    assert_eq!((&tensor["format"], kept(&tensor["ignore"])), (&json!("float-quantized"), names.clone()));
    let awq = config("int4_awq", &[]);
    assert_eq!(
        (&awq["version"], &awq["zero_point"], &awq["group_size"]),
        (&json!("gemm"), &json!(true), &json!(16))
    );
    let gptq = config("int4_gptq", &[]);
    assert_eq!(
        (&gptq["sym"], &gptq["desc_act"], &gptq["lm_head"]),
        (&json!(true), &json!(false), &json!(false))
    );
    assert_eq!(gptq["dynamic"]["-:^lm_head$"], json!({}));
    assert_eq!(config("int4_gptq", &["--asymmetric"])["sym"], false);
    let ct = config("int4_ct", &["--asymmetric"]);
    assert_eq!(
        (&ct["format"], &ct["config_groups"]["group_0"]["weights"]["symmetric"]),
        (&json!("pack-quantized"), &json!(false))
    );
}

#[test]
fn matrices_that_groups_do_not_divide_stay_and_are_named() {
    let root = tempfile::tempdir().unwrap();
    let (src, dst) = (fixture("models/qwen3_moe"), root.path().join("w"));
    // Down projections of the experts have 24 columns, or what the fixture says; the others 32 and more.
    convert_ok(&[
        "export",
        src.to_str().unwrap(),
        dst.to_str().unwrap(),
        "--dtype",
        "int4_ct",
        "--group-size",
        "32",
    ]);
    let opened = WeightDir::open(&dst).unwrap();
    let ignored = json(&dst.join("config.json"))["quantization_config"]["ignore"].to_string();
    let mut kinds = [0, 0];
    for name in opened.names().filter(|name| name.contains("_proj.weight")) {
        let is_kept = !opened.is_quantised(name);
        kinds[usize::from(is_kept)] += 1;
        assert_eq!(ignored.contains(name.strip_suffix(".weight").unwrap()), is_kept, "{name}");
        assert_eq!(opened.info(name).unwrap().shape[1].is_multiple_of(32), !is_kept, "{name}");
    }
    assert!(kinds[0] > 0, "{kinds:?}");
    let output =
        convert(&["export", src.to_str().unwrap(), "x", "--dtype", "int4_ct", "--group-size", "1024"]);
    assert_eq!(output.status.code(), Some(65));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("multiple of the group size 1024") && told.contains("hint: a smaller --group-size"),
        "{told}"
    );
}

#[test]
fn broken_quantised_directories_are_named_precisely() {
    let root = tempfile::tempdir().unwrap();
    let copy = |form: &str, change: &dyn Fn(&mut Value)| {
        let dir = tempfile::tempdir_in(root.path()).unwrap();
        fs::copy(
            fixture("quantised").join(form).join("model.safetensors"),
            dir.path().join("model.safetensors"),
        )
        .unwrap();
        let mut config = json(&fixture("quantised").join(form).join("config.json"));
        change(&mut config["quantization_config"]);
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        WeightDir::open(dir.path()).map(|_| ()).unwrap_err().to_string()
    };
    let told = copy("fp8_block", &|config| config["weight_block_size"] = json!([32, 32]));
    assert!(told.contains("k_proj.weight_scale_inv: expected shape [2, 3], got [3, 3]"), "{told}");
    let told = copy("int4_awq", &|config| config["quant_method"] = json!("bitsandbytes"));
    assert!(told.contains("unsupported quantization_config: quant_method \"bitsandbytes\""), "{told}");
    let told = copy("int4_awq", &|config| config["bits"] = json!(8));
    assert!(told.contains("awq of 8 bits"), "{told}");
    // The same words with another meaning: the shapes tell.
    let told = copy("int4_awq", &|config| config["quant_method"] = json!("gptq"));
    assert!(told.contains("q_proj.") && told.contains("expected shape"), "{told}");
}
