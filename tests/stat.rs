//! `slime-stat` from outside: tables, curves and JSON from a run directory or stdin.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn stat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .args(arguments)
        .env("COLUMNS", "80")
        .output()
        .expect("it starts")
}

fn run_with(train: &str, eval: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let metrics = folder.path().join("metrics");
    fs::create_dir(&metrics).expect("writable");
    fs::write(metrics.join("train.jsonl"), train).expect("writable");
    fs::write(metrics.join("eval.jsonl"), eval).expect("writable");
    folder
}

fn name(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}

const TRAIN: &str = "{\"step\":0,\"tool\":\"train\",\"reward_mean\":0.25,\"lr\":2e-5}\n\
                     {\"step\":1,\"tool\":\"train\",\"reward_mean\":0.5,\"lr\":2e-5}\n\
                     {\"step\":1,\"tool\":\"train\",\"reward_mean\":0.75,\"lr\":2e-5}\n\
                     {\"step\":2,\"tool\":\"tra";
const EVAL: &str = "{\"version\":0,\"tool\":\"eval\",\"set\":\"held_out\",\"reward_mean\":0.1}\n\
                    {\"version\":2,\"tool\":\"eval\",\"set\":\"held_out\",\"reward_mean\":0.6}\n";

#[test]
fn json_joins_steps_and_evaluations() {
    let run = run_with(TRAIN, EVAL);
    fs::create_dir(run.path().join("attempt-0")).expect("writable");
    fs::write(run.path().join("attempt-0/outcome"), "drained\n").expect("writable");
    let output = stat(&[name(run.path()), "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        value,
        json!({
            "steps": [{"step": 0, "reward_mean": 0.25, "lr": 2e-5}, {"step": 1, "reward_mean": 0.75, "lr": 2e-5}],
            "eval": [
                {"version": 0, "set": "held_out", "reward_mean": 0.1},
                {"version": 2, "set": "held_out", "reward_mean": 0.6}
            ],
            "outcome": "drained"
        })
    );
}

#[test]
fn page_has_tables_curves_and_outcome() {
    let run = run_with(TRAIN, EVAL);
    let output = stat(&[name(run.path())]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("step  reward_mean        lr\n   0       0.2500  2.000e-5\n"), "{text}");
    for part in ["reward_mean by step", "reward_mean of held_out by version", "outcome: unfinished"] {
        assert!(text.contains(part), "{text}");
    }
    let only = stat(&[name(run.path()), "--eval"]);
    assert!(String::from_utf8_lossy(&only.stdout).starts_with("version       set"), "{only:?}");
}

#[test]
fn narrow_terminals_are_told_what_is_left_out() {
    let wide: Vec<String> = (0..20).map(|i| format!("\"some_long_name_{i:02}\":{i}")).collect();
    let run = run_with(&format!("{{\"step\":0,\"reward_mean\":0.5,{}}}\n", wide.join(",")), "");
    let output = stat(&[name(run.path())]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().next().is_some_and(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("--json also has") && text.contains("some_long_name_19"), "{text}");
}

#[test]
fn missing_runs_and_broken_lines_are_errors() {
    let missing = stat(&["/no/such/run"]);
    assert_eq!(missing.status.code(), Some(66));
    let run = run_with("{\"step\":0}\n{\"step\":\n{\"step\":1}\n", "");
    let output = stat(&[name(run.path())]);
    assert_eq!(output.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&output.stderr).contains("train.jsonl: line 2: "), "{output:?}");
    let empty = tempfile::tempdir().expect("a folder can be made");
    let output = stat(&[name(empty.path())]);
    assert!(output.status.success() && output.stdout.starts_with(b"no steps yet"));
}
