//! The loop whose engines get quantised weights: the bytes of slime-convert, and a training that computes experts as they do.
#![allow(clippy::unwrap_used)]

#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tiny_loop::{TOGETHER, TRAIN, assert_consumed_once, deeds, run_dir, whole};

const CONVERT: &str = env!("CARGO_BIN_EXE_slime-convert");
const INT4: [&str; 3] =
    ["rollout.weights.form=int4_ct", "rollout.weights.group_size=16", "rollout.weights.only_experts=true"];

/// A folder with a tiny mixture whose every token is a number.
fn mixture() -> TempDir {
    let dir = TempDir::new().unwrap();
    tiny_loop::weights_of(dir.path(), Some("qwen3_moe"));
    dir
}

/// The largest mean difference of log-probs between generation and training in a step.
fn apart(run: &Path) -> f64 {
    let output = Command::new(env!("CARGO_BIN_EXE_slime-stat")).arg(run).arg("--json").output().unwrap();
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = stat["steps"].as_array().unwrap().iter();
    steps.map(|step| step["train/train_rollout_logprob_abs_diff"].as_f64().unwrap()).fold(0.0, f64::max)
}

/// That matrices of the first version have the bytes of slime-convert; how many there are.
fn assert_converted(dir: &TempDir, run: &Path, options: &[&str]) -> usize {
    let converted = dir.path().join(options.concat());
    let output = Command::new(CONVERT)
        .arg("export")
        .arg(dir.path().join("weights"))
        .arg(&converted)
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (published, converted) = (tensors(&run.join("weights/000000.e001")), tensors(&converted));
    assert_eq!(published.keys().collect::<Vec<_>>(), converted.keys().collect::<Vec<_>>());
    let mut num_same = 0;
    for (name, (dtype, bytes)) in &converted {
        // What is not quantised keeps the type of the model there.
        if published[name].0 == *dtype {
            assert!(published[name].1 == *bytes, "{name} differs");
            num_same += 1;
        }
    }
    num_same
}

/// Type and bytes of every tensor of a directory, as they are in its file.
fn tensors(dir: &Path) -> BTreeMap<String, (Value, Vec<u8>)> {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let (len, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let infos = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let read = |(name, info): (String, Value)| {
        let at = |index: usize| info["data_offsets"][index].as_u64().unwrap() as usize;
        let bytes = data[at(0)..at(1)].to_vec();
        (name, (info["dtype"].clone(), bytes))
    };
    infos.map(read).collect()
}

#[test]
fn experts_in_four_bits_are_trained_as_engines_have_them() {
    let dir = mixture();
    let mut sets = INT4.to_vec();
    sets.push("train.qat=true");
    let run = run_dir(&dir, "qat", &sets);
    whole(&run, &TOGETHER);
    assert_consumed_once(&run, &deeds(&run));
    assert!(apart(&run) < 1e-5, "with train.qat log-probs differ by {}", apart(&run));
    let convert = ["--dtype", "int4_ct", "--group-size", "16", "--only-experts"];
    // Six experts of three matrices in one layer, each packed words, scales and a shape.
    assert_eq!(assert_converted(&dir, &run, &convert), 6 * 3 * 3);
    let without = run_dir(&dir, "without", &INT4);
    whole(&without, &TOGETHER);
    assert!(apart(&without) > 1e-3, "without train.qat log-probs differ by {} alone", apart(&without));
}

#[test]
fn every_transport_carries_quantised_weights() {
    let dir = mixture();
    for (transport, form) in [("disk", "fp8_block"), ("shm", "fp8_tensor"), ("delta", "int4_ct")] {
        let form_set = format!("rollout.weights.form={form}");
        let transport_set = format!("sync.transport={transport}");
        let size = "rollout.weights.group_size=16";
        let sets = [&form_set, &transport_set, size, "rollout.kv_cache_dtype=fp8_e4m3"];
        let run = run_dir(&dir, transport, &sets);
        whole(&run, &TOGETHER);
        let deeds = deeds(&run);
        assert_consumed_once(&run, &deeds);
        assert!(deeds.last_reward > deeds.first_reward + 0.1, "{transport}, {form}: nothing was learned");
        let apart = apart(&run);
        assert!(apart > 1e-4 && apart < 0.3, "{transport}, {form}: log-probs differ by {apart}");
        if transport == "disk" {
            // Attention of two layers, a dense MLP, six experts; each with its scales.
            assert_eq!(assert_converted(&dir, &run, &["--dtype", form]), 2 * (2 * 4 + 3 + 6 * 3));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = mixture();
    let refused = |sets: &[&str], code: i32| {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/tiny.toml");
        let weights = format!("model.path={}", dir.path().join("weights").display());
        let output = Command::new(TRAIN)
            .arg("--config")
            .arg(config)
            .args(["--set", "reward.types=[\"number\"]", "--set", &weights])
            .args(sets.iter().flat_map(|set| ["--set", set]))
            .args(["--samples", "/dev/null", "--output"])
            .arg(dir.path().join("none"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        text
    };
    let text = refused(&["train.qat=true"], 78);
    assert!(text.contains("form = \"int4_ct\" and only_experts = true"), "{text}");
    let text = refused(&["rollout.weights.form=int4_ct", "rollout.weights.group_size=12"], 78);
    assert!(text.contains("rollout.weights.group_size") && text.contains("multiple of 8"), "{text}");
    let wide = [INT4[0], INT4[2], "rollout.weights.group_size=32", "train.qat=true"];
    let text = refused(&wide, 78);
    assert!(
        text.contains("layers.1.experts_down with 16 on this rank") && text.contains("multiples of 32"),
        "{text}"
    );
    let text = refused(&["rollout.weights.form=int4"], 78);
    assert!(text.contains("int4_ct"), "{text}");
}
