//! Runs that are broken, incomplete, of another version or in mid-write are shown as far as they go.

use std::fs;

use serde_json::Value;

use super::synthetic::Synthetic;
use super::{name, run_with, stat, stat_of};

#[test]
fn todays_names_are_joined_and_reward_mean_is_added() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    Synthetic::default().write(folder.path());
    let output = stat(&[name(folder.path()), "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let step = &value["steps"][3];
    assert_eq!(step["step"], 3);
    assert_eq!(step["reward_mean"], step["rollout/raw_reward"]);
    assert!(step["train/grad_norm"].is_number() && step["rollout/response_len/mean"].is_number());
    assert_eq!(value["outcome"], "done");
    assert_eq!(value["eval"].as_array().map(Vec::len), Some(14));
    let seconds = &value["phases"]["parts"]["train"]["seconds"];
    assert_eq!(seconds.as_f64(), Some(72.0), "of 12 steps; train_time holds others and is left out");
    let table = stat(&[name(folder.path())]);
    let text = String::from_utf8_lossy(&table.stdout);
    let head = text.lines().next().expect("a head");
    assert!(head.starts_with("step  raw_reward  reward_std") && !head.contains("reward_mean"), "{head}");
    assert!(text.contains("rollout/raw_reward by step") && text.contains("outcome: done"), "{text}");
}

#[test]
fn torn_and_broken_lines_are_left_out_and_said() {
    let run = run_with(
        "{\"step\":0,\"loss\":1}\n{\"step\":1,\"lo{\"step\":2,\"loss\":3}\n{\"step\":3,\"loss\":4}\n{\"st",
        "",
    );
    let output = stat(&[name(run.path()), "--json"]);
    assert!(output.status.success(), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let steps: Vec<&Value> =
        value["steps"].as_array().expect("a list").iter().map(|row| &row["step"]).collect();
    assert_eq!(steps, [0, 3]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("train.jsonl: 1 broken line is left out"), "{said}");
    assert!(said.contains("its last line is still being written"), "{said}");
}

#[test]
fn streams_about_other_things_are_no_steps() {
    let run = run_with("{\"step\":0,\"loss\":1}\n", "");
    let metrics = run.path().join("metrics");
    fs::write(metrics.join("engine-0.jsonl"), "{\"time\":5,\"num_running\":3}\n").expect("writable");
    fs::write(metrics.join("warnings.jsonl"), "{\"step\":7,\"kind\":\"truncation\",\"value\":0.5}\n")
        .expect("writable");
    let output = stat(&[name(run.path()), "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["steps"].as_array().map(Vec::len), Some(1), "{output:?}");
}

#[test]
fn run_that_is_not_there_yet_hints_at_the_queue() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for path in [folder.path().join("not/yet"), folder.path().to_owned()] {
        let output = stat(&[name(&path)]);
        assert_eq!(output.status.code(), Some(66));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("slime-stat: hint: ") && said.contains("squeue"), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
    }
}

#[test]
fn empty_stdin_is_an_error() {
    for input in ["", "\n\n"] {
        for more in [&[][..], &["--json"]] {
            let output = stat_of(input.as_bytes(), more);
            assert_eq!(output.status.code(), Some(65), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("stdin: no rows"), "{output:?}");
            assert!(output.stdout.is_empty());
        }
    }
}
