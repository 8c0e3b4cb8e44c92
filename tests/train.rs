//! `slime-train` from outside: one rollout in, new weights and dumps out, alone and under mpirun, and bad input.

#[path = "fixtures/launcher.rs"]
mod launcher;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use slime_weights::{WeightDir, decode_f32};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-train"));
    command.env("OMP_NUM_THREADS", "1");
    command
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Four groups of four ragged samples over the fixtures' vocabulary, as rewarded JSON lines.
fn rows() -> Vec<Value> {
    let mut rows = Vec::new();
    for group in 0..4u32 {
        for index in 0..4u32 {
            let prompt: Vec<u32> = (0..3 + group).map(|at| (group * 17 + at * 5) % 96).collect();
            let response: Vec<u32> =
                (0..=(group + 2 * index) % 5).map(|at| (group * 7 + index * 11 + at * 3) % 96).collect();
            let (prompt_len, response_len) = (prompt.len(), response.len());
            let (loss_mask, log_probs) = (vec![1; response_len], vec![-4.5; response_len]);
            let tokens = [prompt, response].concat();
            rows.push(json!({
                "step": 0, "group": group, "index": index, "status": "completed",
                "tokens": tokens, "prompt_len": prompt_len, "loss_mask": loss_mask,
                "rollout_log_probs": log_probs, "reward": f64::from(index % 2),
            }));
        }
    }
    rows
}

/// A folder with `samples.jsonl` and `run.toml`.
fn folder(rows: &[Value]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let text = rows.iter().map(|row| row.to_string() + "\n").collect::<String>();
    fs::write(dir.path().join("samples.jsonl"), text).expect("samples are written");
    let toml = format!(
        "[model]\npath = \"{}\"\n[rollout]\nrollout_batch_size = 4\nn_samples_per_prompt = 4\n[train]\nlr = 1e-3\n",
        fixture("llama").display()
    );
    fs::write(dir.path().join("run.toml"), toml).expect("the configuration is written");
    dir
}

fn train(dir: &Path, more: &[&str]) -> Output {
    tool()
        .current_dir(dir)
        .args(["--config", "run.toml", "--samples", "samples.jsonl"])
        .args(more)
        .output()
        .expect("slime-train starts")
}

#[test]
fn samples_above_the_budget_are_said_once() {
    let dir = folder(&rows());
    let set = ["--set", "train.max_tokens_per_gpu=5", "--output", "out"];
    let output = train(dir.path(), &set);
    let stderr = message(&output);
    assert!(output.status.success(), "{stderr}");
    let said: Vec<&str> = stderr.lines().filter(|line| line.contains("train.max_tokens_per_gpu 5")).collect();
    assert_eq!(said.len(), 1, "{stderr}");
    assert!(said[0].contains("sample 0/0/2.0.0 takes 7 tokens, more than"), "{stderr}");
}

#[test]
fn steps_that_are_not_finite_end_the_tool_or_are_left_out() {
    let mut rows = rows();
    for (at, row) in rows.iter_mut().enumerate() {
        if at == 6 {
            row["rollout_log_probs"] = json!([]);
        }
    }
    let dir = folder(&rows);
    let weighed = ["--set", "algorithm.correction.weight=truncate", "--output", "out"];
    let output = train(dir.path(), &weighed);
    let stderr = message(&output);
    assert_eq!(output.status.code(), Some(65), "{stderr}");
    assert!(
        stderr.contains("loss is NaN, not a finite number") && stderr.contains("samples: 0/1/2.0.0"),
        "{stderr}"
    );
    assert!(stderr.contains("hint: checks.on_not_finite"), "{stderr}");
    assert!(!dir.path().join("out").exists());
    let output = train(dir.path(), &[&weighed[..], &["--set", "checks.on_not_finite=skip"]].concat());
    let stderr = message(&output);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("it is left out, as the 1. step since the start"), "{stderr}");
    assert!(stderr.contains("optimizer step 1/1: left out"), "{stderr}");
    let [before, after] = [fixture("llama"), dir.path().join("out")].map(|dir| {
        WeightDir::open(&dir).expect("weights").tensor("model.norm.weight").expect("a tensor").bytes.to_vec()
    });
    assert_eq!(before, after, "a step that is left out changes nothing");
}

#[test]
fn a_dry_run_says_what_a_rank_takes() {
    let dir = folder(&rows());
    let planned = |set: &str| {
        let mut command = tool();
        let output = command
            .current_dir(dir.path())
            .args(["--config", "run.toml", "--dry-run", "--set", set])
            .output();
        let output = output.expect("slime-train starts");
        assert!(output.status.success(), "{}", message(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let kept = planned("train.recompute=none");
    assert!(kept.contains("# a rank of tp 1 dp 1 ep 1 etp 1 takes "), "{kept}");
    assert!(kept.contains("a step of 8192 tokens with recompute none:\n#   weights "), "{kept}");
    assert!(planned("train.optimizer_offload=true").contains("#   of it in the memory of the host: "));
    assert!(planned("train.recompute=full").contains("with recompute full:"));
}

/// The tensors of one safetensors file of a dump.
fn tensors(file: &Path) -> Vec<(String, Vec<f32>)> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::copy(file, dir.path().join("model.safetensors")).expect("the file is there");
    let weights = WeightDir::open(dir.path()).expect("it is safetensors");
    let read = |name: &str| {
        let view = weights.tensor(name).expect("a listed tensor is there");
        (name.to_owned(), decode_f32(name, &view.bytes, view.dtype).expect("it is floating"))
    };
    weights.names().map(read).collect()
}

fn loss(dump: &Path) -> Value {
    serde_json::from_slice(&fs::read(dump.join("loss.json")).expect("loss.json is there"))
        .expect("it is JSON")
}

fn close(a: &[(String, Vec<f32>)], b: &[(String, Vec<f32>)], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    for ((name, a), (other, b)) in a.iter().zip(b) {
        assert_eq!(name, other);
        let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= tolerance, "{name}: {worst}");
    }
}

#[test]
fn one_rollout_gives_new_weights_and_a_dump_under_hugging_face_names() {
    let dir = folder(&rows());
    let output = train(dir.path(), &["--output", "new", "--dump", "dump"]);
    assert!(output.status.success(), "{}", message(&output));
    assert!(output.stdout.is_empty());
    let old = tensors(&fixture("llama").join("model.safetensors"));
    let new = tensors(&dir.path().join("new/model.safetensors"));
    let grads = tensors(&dir.path().join("dump/grads.safetensors"));
    assert!(old.iter().map(|t| &t.0).eq(new.iter().map(|t| &t.0)), "the same tensors");
    assert!(old.iter().map(|t| &t.0).eq(grads.iter().map(|t| &t.0)), "a gradient for each");
    close(&new, &tensors(&dir.path().join("dump/weights.safetensors")), 0.0);
    // AdamW's first update moves a weight by the learning rate against its gradient.
    for ((name, old), ((_, new), (_, grads))) in old.iter().zip(new.iter().zip(&grads)) {
        for ((old, new), grad) in old.iter().zip(new).zip(grads) {
            if grad.abs() > 1e-4 {
                assert!((old - new - 1e-3 * grad.signum()).abs() < 2e-5, "{name}: {old} -> {new} by {grad}");
            }
        }
    }
    assert!(dir.path().join("new/config.json").exists());
    let loss = loss(&dir.path().join("dump"));
    assert_eq!(loss["steps"].as_array().map(Vec::len), Some(1));
    assert!(loss["loss"].as_f64().is_some_and(f64::is_finite));
    assert_eq!(loss["steps"][0]["train/global_batch_size"], 16.0);
    assert!(loss["steps"][0]["train/train_rollout_logprob_abs_diff"].as_f64() > Some(0.0));
}

#[test]
fn input_that_was_cut_off_within_a_group_is_noticed() {
    let mut rows = rows();
    rows.truncate(14);
    let dir = folder(&rows);
    let output = train(dir.path(), &["--dump", "dump"]);
    let stderr = message(&output);
    assert!(stderr.contains("group 3 of step 0 has 2 samples, others have up to 4"), "{stderr}");
}

/// `ranks` ranks of a training step; none where there is no launcher.
fn mpirun(dir: &Path, ranks: usize, more: &[&str]) -> Option<Command> {
    let mut command = launcher::mpirun(ranks)?;
    command
        .current_dir(dir)
        .env("OMP_NUM_THREADS", "1")
        .arg(env!("CARGO_BIN_EXE_slime-train"))
        .args(["--config", "run.toml", "--samples", "samples.jsonl"])
        .args(more);
    Some(command)
}

/// Loss, gradients and new weights of ranks against those of one.
fn trains_as_alone(model: &str, layouts: &[(usize, &[&str])]) {
    let dir = folder(&rows());
    let (weights, path) = (fixture(model), dir.path());
    let from = ["--weights", weights.to_str().expect("a path in UTF-8")];
    let output = train(path, &[&from[..], &["--output", "alone", "--dump", "dump"]].concat());
    assert!(output.status.success(), "{}", message(&output));
    for (at, (ranks, more)) in layouts.iter().enumerate() {
        let (new, dump) = (format!("new-{at}"), format!("dump-{at}"));
        let all = [&from[..], &["--output", &new, "--dump", &dump], more].concat();
        let Some(mut command) = mpirun(path, *ranks, &all) else { return };
        let output = command.output().expect("mpirun starts");
        assert!(output.status.success(), "{more:?}: {}", message(&output));
        let (one, many) = (loss(&path.join("dump")), loss(&path.join(&dump)));
        let difference = one["loss"].as_f64().zip(many["loss"].as_f64()).map(|(a, b)| (a - b).abs());
        assert!(difference < Some(1e-6), "{one} and {many}");
        let grads = |dump: &str| tensors(&path.join(dump).join("grads.safetensors"));
        close(&grads(&dump), &grads("dump"), 1e-6);
        let written = |dir: &str| tensors(&path.join(dir).join("model.safetensors"));
        // Where a gradient is next to nothing, AdamW's first update may go either way.
        close(&written(&new), &written("alone"), 2.1e-3);
    }
}

#[test]
fn ranks_under_mpirun_give_the_same_loss_and_weights() {
    trains_as_alone("llama", &[(2, &[]), (3, &[])]);
}

#[test]
fn split_models_under_mpirun_give_the_same_dump() {
    trains_as_alone("qwen3", &[(2, &["--set", "parallel.tp=2"]), (4, &["--set", "parallel.tp=4"])]);
    trains_as_alone(
        "glm4_moe",
        &[
            (2, &["--set", "parallel.ep=2"]),
            (4, &["--set", "parallel.tp=2", "--set", "parallel.ep=2", "--set", "parallel.etp=2"]),
        ],
    );
}

#[test]
fn stages_and_contexts_under_mpirun_give_the_same_dump() {
    let small = ["--set", "train.max_tokens_per_gpu=16"];
    let stages = [&small[..], &["--set", "parallel.pp=2"]].concat();
    let uneven = [&small[..], &["--set", "parallel.pp=3"]].concat();
    let contexts = ["--set", "parallel.cp=2", "--set", "parallel.cp_comm_type=p2p"];
    let all = ["--set", "parallel.pp=2", "--set", "parallel.cp=2", "--set", "parallel.ep=2"];
    trains_as_alone("llama_tied", &[(2, &stages)]);
    trains_as_alone("glm4_moe", &[(3, &uneven), (2, &contexts), (4, &all)]);
}

#[test]
fn dry_run_prints_the_resolved_configuration() {
    let dir = folder(&[]);
    let output = train(dir.path(), &["--dry-run", "--set", "train.lr=2e-6"]);
    assert!(output.status.success(), "{}", message(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("global_batch_size = 16") && text.contains("lr = 0.000002"), "{text}");
}

#[test]
fn bad_input_gives_one_error_and_its_exit_code() {
    let check = |rows: &[Value], more: &[&str], code: i32, text: &str| {
        let dir = folder(rows);
        let output = train(dir.path(), more);
        assert_eq!(output.status.code(), Some(code), "{}", message(&output));
        assert!(message(&output).contains(text), "{text:?} is not in {}", message(&output));
        assert_eq!(message(&output).matches("slime-train: error:").count(), 1);
        assert!(!dir.path().join("new").exists(), "nothing is left behind");
    };
    let output = ["--output", "new"];
    let mut without = rows();
    without[5].as_object_mut().expect("a row is an object").remove("reward");
    check(&without, &output, 65, "samples.jsonl: row 6 (sample 0/1/1.0.0): no reward");
    check(&[], &output, 65, "no samples to train on");
    let mut foreign = rows();
    foreign[0]["tokens"][0] = json!(4096);
    check(&foreign, &output, 65, "expected ids below 96, got 4096");
    check(&rows()[..15], &["--output", "new", "--set", "train.num_steps_per_rollout=2"], 78, "15 samples");
    check(&rows(), &["--output", "new", "--weights", "nowhere"], 66, "nowhere");
    check(&rows(), &["--output", "new", "--set", "train.lrr=1"], 78, "lrr");
    check(&rows(), &[], 64, "nothing would be written");
}
