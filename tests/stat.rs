//! `slime-stat` from outside: tables, curves and JSON from a run directory or stdin.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use slime_record::{Column, ColumnValues, Provenance, Sample, Status, VersionRun, encode_segment};

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
    assert_eq!(output.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a run directory"), "{output:?}");
    fs::write(empty.path().join("run.toml"), "").expect("writable");
    let output = stat(&[name(empty.path())]);
    assert!(output.status.success() && output.stdout.starts_with(b"no steps yet"));
}

/// An evaluation of set `greedy` at `version`: two questions with these answers and rewards.
fn evaluate(run: &Path, version: u64, epoch: u64, answers: [(&str, f32); 2]) {
    let samples: Vec<Sample> = (0..2)
        .map(|group| Sample {
            step: version,
            group,
            prompt_id: format!("p{group}"),
            prompt: format!("[{{\"role\":\"user\",\"content\":\"Compute {group} + 1.\"}}]"),
            label: Some((group + 1).to_string()),
            response: answers[group as usize].0.to_owned(),
            tokens: vec![1, 2],
            prompt_len: 1,
            loss_mask: vec![1],
            rollout_log_probs: vec![-0.5],
            weight_versions: vec![VersionRun { version, len: 1 }],
            status: Status::Completed,
            ..Sample::default()
        })
        .collect();
    let folder = run.join(format!("eval/{version:06}.e{epoch:03}/greedy"));
    fs::create_dir_all(&folder).expect("writable");
    let provenance = Provenance::default();
    let segment = encode_segment(&samples, &provenance).expect("samples are whole");
    fs::write(folder.join("samples.arrow"), segment).expect("writable");
    let rewards = answers.map(|(_, reward)| reward).to_vec();
    let column = Column::new("reward", &samples, ColumnValues::F32(rewards));
    fs::write(folder.join("reward.arrow"), column.encode(&provenance).expect("columns are whole"))
        .expect("writable");
}

#[test]
fn answers_of_the_first_and_the_newest_version_stand_side_by_side() {
    let run = tempfile::tempdir().expect("a folder can be made");
    evaluate(run.path(), 0, 1, [("about 5", 0.0), ("2", 1.0)]);
    evaluate(run.path(), 4, 1, [("never shown", 0.0), ("never shown", 0.0)]);
    evaluate(run.path(), 8, 2, [("1", 1.0), ("2", 1.0)]);
    let output = stat(&[name(run.path()), "--answers", "greedy"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "answers of set greedy (+ has a reward above 0)\n\
         question        expected  version 0  version 8\n\
         Compute 0 + 1.  1         - about 5  + 1\n\
         Compute 1 + 1.  2         + 2        + 2\n\
         1 of 2 before, 2 after\n"
    );
    let other = stat(&[name(run.path()), "--answers", "gredy"]);
    assert_eq!(other.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&other.stderr).contains("no evaluation of set gredy"), "{other:?}");
    fs::write(run.path().join("eval/000008.e002/greedy/reward.arrow"), b"ARROW1 no more").expect("writable");
    let broken = stat(&[name(run.path()), "--answers", "greedy"]);
    assert_eq!(broken.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&broken.stderr).contains("reward.arrow"), "{broken:?}");
}

#[test]
fn watch_prints_what_comes_and_ends_with_the_run() {
    let run = run_with(
        "{\"step\":0,\"tool\":\"train\",\"reward_mean\":0.25,\"loss\":0.5}\n",
        "{\"version\":0,\"tool\":\"eval\",\"set\":\"held_out\",\"reward_mean\":0.1}\n",
    );
    fs::write(run.path().join("run.toml"), "[run]\nnum_steps = 2\n").expect("writable");
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-stat"))
        .args([name(run.path()), "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines =
        BufReader::new(child.stdout.take().expect("a pipe")).lines().map(Result::unwrap_or_default);
    assert_eq!(lines.next().as_deref(), Some("     version 0, held_out: reward 0.100"));
    assert_eq!(lines.next().as_deref(), Some("1/2  step 0: reward 0.250"));
    let mut train =
        fs::File::options().append(true).open(run.path().join("metrics/train.jsonl")).expect("it is there");
    train.write_all(b"{\"step\":1,\"tool\":\"train\",\"reward_mean\":0.5,\"loss\":0.5}\n").expect("writable");
    fs::create_dir(run.path().join("control")).expect("writable");
    fs::write(run.path().join("control/done"), "").expect("writable");
    assert_eq!(lines.next().as_deref(), Some("2/2  step 1: reward 0.500"));
    assert_eq!(lines.next(), None);
    assert!(child.wait().expect("our own child").success());
}
