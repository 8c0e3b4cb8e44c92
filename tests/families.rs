//! Every family from the outside: generated from, trained, written back; experts of generation are those of training.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixtures/tiny_weights.rs"]
#[allow(dead_code, reason = "the model is named here")]
mod tiny_weights;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use slime_weights::{Dtype, WeightDir};

const FAMILIES: [&str; 8] =
    ["qwen2", "qwen3_moe", "qwen3_moe_fused", "glm4", "glm4_moe", "glm45_air", "minimax_m2", "mimo"];

fn tool(exe: &str, dir: &Path, args: &[&str], sets: &[&str]) -> Output {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let mut command = Command::new(exe);
    command.current_dir(dir).env("OMP_NUM_THREADS", "1").args(args).args(sets).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder(family: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("weights")).unwrap();
    tiny_weights::write_model(&dir.path().join("weights"), family);
    dir
}

/// Groups of two with rewards that differ.
fn rollout(dir: &Path, sets: &[&str]) -> Vec<Value> {
    fs::write(dir.join("prompts.jsonl"), "{\"prompt\": \"3 7 5\"}\n{\"prompt\": \"8 8 9 4\"}\n").unwrap();
    let args = ["--weights", "weights", "--prompts", "prompts.jsonl"];
    let shape =
        ["data.apply_chat_template=false", "rollout.max_response_len=12", "rollout.n_samples_per_prompt=2"];
    let output = tool(env!("CARGO_BIN_EXE_slime-rollout"), dir, &args, &[&shape, sets].concat());
    assert!(output.status.success(), "{}", told(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.iter_mut().enumerate().for_each(|(i, row)| row["reward"] = json!(i % 2));
    rows
}

fn train(dir: &Path, rows: &[Value], output: &[&str], sets: &[&str]) -> Output {
    let text: String = rows.iter().map(|row| row.to_string() + "\n").collect();
    fs::write(dir.join("samples.jsonl"), text).unwrap();
    let args = [&["--weights", "weights", "--samples", "samples.jsonl"], output].concat();
    tool(env!("CARGO_BIN_EXE_slime-train"), dir, &args, sets)
}

/// With a learning rate of 0 the weights that come out are those that went in, layers that are not computed included.
#[test]
fn weights_of_every_family_come_back_from_training_bit_by_bit() {
    for family in FAMILIES {
        let dir = folder(family);
        let dir = dir.path();
        let rows = rollout(dir, &[]);
        let output = train(dir, &rows, &["--output", "new"], &["train.lr=0"]);
        assert!(output.status.success(), "{family}: {}", told(&output));
        let (old, new) =
            (WeightDir::open(dir.join("weights")).unwrap(), WeightDir::open(dir.join("new")).unwrap());
        // Experts in one tensor come back split, as on the hub.
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        let old = match family.strip_suffix("_fused") {
            Some(split) => WeightDir::open(fixture.join(split)).unwrap(),
            None => old,
        };
        assert_eq!(old.names().collect::<Vec<_>>(), new.names().collect::<Vec<_>>(), "{family}");
        for name in old.names() {
            let (old, new) = (old.tensor(name).unwrap(), new.tensor(name).unwrap());
            assert_eq!(
                (old.dtype, old.shape, old.bytes),
                (new.dtype, new.shape, new.bytes),
                "{family}: {name}"
            );
        }
        assert!(dir.join("new/tokenizer.json").exists());
    }
}

/// The correction bias stays f32 in a bf16 model, layers that are not computed stay as they are.
#[test]
fn bf16_model_keeps_bias_and_carried_tensors_as_they_are() {
    let dir = folder("glm4_moe");
    let dir = dir.path();
    let rows = rollout(dir, &["model.dtype=bf16"]);
    let output = train(dir, &rows, &["--output", "new"], &["train.lr=0", "model.dtype=bf16"]);
    assert!(output.status.success(), "{}", told(&output));
    let (old, new) =
        (WeightDir::open(dir.join("weights")).unwrap(), WeightDir::open(dir.join("new")).unwrap());
    for name in new.names() {
        let (old, new) = (old.tensor(name).unwrap(), new.tensor(name).unwrap());
        let is_kept = name.ends_with("e_score_correction_bias") || name.starts_with("model.layers.3.");
        assert_eq!(new.dtype, if is_kept { Dtype::F32 } else { Dtype::BF16 }, "{name}");
        assert!(!is_kept || old.bytes == new.bytes, "{name}");
    }
}

#[test]
fn layer_for_further_tokens_is_trained_where_that_is_asked_for() {
    let dir = folder("mimo");
    let dir = dir.path();
    let rows = rollout(dir, &[]);
    let sets = ["train.lr=0.01", "train.mtp_loss_coef=0.2"];
    let output = train(dir, &rows, &["--output", "new", "--dump", "dump"], &sets);
    assert!(output.status.success(), "{}", told(&output));
    let (old, new) =
        (WeightDir::open(dir.join("weights")).unwrap(), WeightDir::open(dir.join("new")).unwrap());
    assert_eq!(old.names().collect::<Vec<_>>(), new.names().collect::<Vec<_>>());
    for name in old.names().filter(|name| name.starts_with("model.mtp_layers.")) {
        assert!(old.tensor(name).unwrap().bytes != new.tensor(name).unwrap().bytes, "{name}");
    }
    let dump: Value = serde_json::from_str(&fs::read_to_string(dir.join("dump/loss.json")).unwrap()).unwrap();
    assert!(dump["steps"][0]["train/mtp_loss"].as_f64().unwrap() > 1.0, "{dump}");
    let dir = folder("glm4_moe");
    let rows = rollout(dir.path(), &[]);
    let output = train(dir.path(), &rows, &["--dump", "dump"], &sets);
    assert_eq!(output.status.code(), Some(65));
    assert!(
        told(&output).contains("layer that predicts further tokens: expected a mimo model"),
        "{}",
        told(&output)
    );
}

fn mismatch(dir: &Path, output: &Output) -> f64 {
    assert!(output.status.success(), "{}", told(output));
    let dump: Value = serde_json::from_str(&fs::read_to_string(dir.join("dump/loss.json")).unwrap()).unwrap();
    dump["steps"][0]["train/train_rollout_logprob_abs_diff_max"].as_f64().unwrap()
}

#[test]
fn samples_bring_the_experts_of_generation_and_training_goes_there() {
    for (family, layers, top_k) in [("qwen3_moe", 1, 2), ("glm4_moe", 2, 3), ("minimax_m2", 2, 2)] {
        let dir = folder(family);
        let dir = dir.path();
        let sets = ["algorithm.routing_replay=rollout"];
        let mut rows = rollout(dir, &sets);
        for row in &rows {
            let (tokens, ids) =
                (row["tokens"].as_array().unwrap(), row["routed_experts"].as_array().unwrap());
            assert_eq!(ids.len(), (tokens.len() - 1) * layers * top_k, "{family}");
        }
        let dump = ["--dump", "dump"];
        let same = mismatch(dir, &train(dir, &rows, &dump, &sets));
        assert!(same < 1e-3, "{family}: {same}");
        // Elsewhere: the log-probs of training follow.
        for row in &mut rows {
            let ids = row["routed_experts"].as_array_mut().unwrap();
            for id in ids.iter_mut() {
                *id = json!((id.as_u64().unwrap() + 1) % 6);
            }
        }
        let elsewhere = mismatch(dir, &train(dir, &rows, &dump, &sets));
        assert!(elsewhere > 1e-2, "{family}: {elsewhere}");
        assert!(mismatch(dir, &train(dir, &rows, &dump, &[])) < 1e-3, "{family}: not read unless replayed");

        rows[1]["routed_experts"].as_array_mut().unwrap().pop();
        let output = train(dir, &rows, &dump, &sets);
        assert_eq!(output.status.code(), Some(65));
        assert!(told(&output).contains("sample 0/0/1.0.0: routed_experts: expected"), "{}", told(&output));
        rows[1].as_object_mut().unwrap().remove("routed_experts");
        let output = train(dir, &rows, &dump, &sets);
        assert_eq!(output.status.code(), Some(65));
        assert!(told(&output).contains("as algorithm.routing_replay is"), "{}", told(&output));
    }
    let dir = folder("qwen2");
    let rows = rollout(dir.path(), &["algorithm.routing_replay=rollout"]);
    assert!(rows.iter().all(|row| row.get("routed_experts").is_none()), "a dense model has no experts");
    let output = train(dir.path(), &rows, &["--dump", "dump"], &["algorithm.routing_replay=rollout"]);
    assert!(
        output.status.success() && told(&output).contains("the model has no experts"),
        "{}",
        told(&output)
    );
}
