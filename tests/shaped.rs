//! Samples of a part of the vocabulary and under penalties: generation and training mean the same distribution.

#[path = "fixtures/tiny_weights.rs"]
mod tiny_weights;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const SAMPLING: [&str; 7] = [
    "rollout.temperature=0.8",
    "rollout.top_p=0.9",
    "rollout.top_k=40",
    "rollout.min_p=0.01",
    "rollout.repetition_penalty=1.3",
    "rollout.frequency_penalty=0.4",
    "rollout.presence_penalty=-0.3",
];

fn tool(exe: &str, dir: &Path, args: &[&str], sets: &[&str]) -> Output {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    Command::new(exe)
        .current_dir(dir)
        .env("OMP_NUM_THREADS", "1")
        .args(args)
        .args(sets)
        .output()
        .expect("the tool starts")
}

/// Groups of four with rewards that differ.
fn rollout(dir: &Path, sets: &[&str]) -> Vec<Value> {
    let prompts = [0, 1, 2, 3].map(|i| format!("{{\"prompt\": \"{i} 7 {i} 9\"}}\n")).concat();
    fs::write(dir.join("prompts.jsonl"), prompts).expect("writable");
    let args = ["--weights", "weights", "--prompts", "prompts.jsonl"];
    let shape =
        ["data.apply_chat_template=false", "rollout.max_response_len=24", "rollout.n_samples_per_prompt=4"];
    let output = tool(env!("CARGO_BIN_EXE_slime-rollout"), dir, &args, &[&shape, sets].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    for (i, row) in rows.iter_mut().enumerate() {
        row["reward"] = json!(i % 2);
    }
    rows
}

fn train(dir: &Path, rows: &[Value], sets: &[&str]) -> Output {
    let text: String = rows.iter().map(|row| row.to_string() + "\n").collect();
    fs::write(dir.join("samples.jsonl"), text).expect("writable");
    let args = ["--weights", "weights", "--samples", "samples.jsonl", "--dump", "dump"];
    tool(env!("CARGO_BIN_EXE_slime-train"), dir, &args, sets)
}

/// The largest difference between the log-probs of training and of generation, in nats.
fn mismatch(dir: &Path, output: &Output) -> f64 {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(dir.join("dump/loss.json")).expect("a dump");
    let dump: Value = serde_json::from_str(&text).expect("JSON");
    dump["steps"][0]["train/train_rollout_logprob_abs_diff_max"].as_f64().expect("a number")
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir(dir.path().join("weights")).expect("writable");
    tiny_weights::write(&dir.path().join("weights"));
    dir
}

fn num_kept(row: &Value) -> u64 {
    row["kept_lens"].as_array().expect("lens").iter().map(|len| len.as_u64().expect("a count")).sum()
}

#[test]
fn log_probs_of_truncated_and_penalised_samples_are_those_of_training() {
    let dir = folder();
    let dir = dir.path();
    let rows = rollout(dir, &SAMPLING);
    for row in &rows {
        let response_len = row["loss_mask"].as_array().expect("a mask").len();
        assert_eq!(row["kept_lens"].as_array().expect("lens").len(), response_len);
        assert_eq!(row["kept_token_ids"].as_array().expect("ids").len() as u64, num_kept(row));
    }
    let all: u64 = rows.iter().map(num_kept).sum();
    assert!(all > 0, "nothing was truncated");
    // Each row loss, then forms whose loss looks at whole sequences.
    for more in [&[][..], &["algorithm.advantage_estimator=gspo"], &["algorithm.correction.veto=1e-9"]] {
        let diff = mismatch(dir, &train(dir, &rows, &[&SAMPLING, more].concat()));
        assert!(diff < 2e-5, "{more:?}: {diff}");
    }
    let unpenalised = &SAMPLING[..4];
    assert!(mismatch(dir, &train(dir, &rows, unpenalised)) > 1e-2, "penalties are read");
    let mut bare = rows.clone();
    for row in &mut bare {
        let row = row.as_object_mut().expect("a row");
        row.remove("kept_lens");
        row.remove("kept_token_ids");
    }
    let penalties_alone = [&["rollout.temperature=0.8"], &SAMPLING[4..]].concat();
    assert!(mismatch(dir, &train(dir, &bare, &penalties_alone)) > 1e-2, "kept ids are read");
    let refused = train(dir, &bare, &SAMPLING);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(65), "{message}");
    assert!(message.contains("sample 0/0/0.0.0: kept_lens: expected how many ids"), "{message}");
}

#[test]
fn a_step_of_the_whole_vocabulary_records_no_ids() {
    let dir = folder();
    for row in rollout(dir.path(), &["rollout.temperature=0.8"]) {
        assert!(row.get("kept_lens").is_none() && row.get("kept_token_ids").is_none());
    }
}
