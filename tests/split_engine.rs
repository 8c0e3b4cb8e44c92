//! Engines over several ranks of MPI: samples of one rank, the loop with kills, and what is refused.
#![allow(clippy::unwrap_used)]

#[path = "fixtures/launcher.rs"]
mod launcher;
#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tiny_loop::{ROLLOUT, TRAIN, assert_consumed_once, deeds, log, manifest, run_dir, start, wait_until};

/// `slime-rollout` on so many ranks.
fn rollout(ranks: usize) -> Option<Command> {
    let mut command = launcher::mpirun(ranks)?;
    command.arg(ROLLOUT).env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
    Some(command)
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The samples of twelve sums, from an engine of so many ranks.
fn samples(weights: &Path, ranks: usize) -> Option<Vec<Value>> {
    let mut command = if ranks == 1 { Command::new(ROLLOUT) } else { rollout(ranks)? };
    let output = command
        .args(["--set", "data.environment=arithmetic", "--set", "data.apply_chat_template=false"])
        .args(["--set", &format!("rollout.tp={ranks}"), "--set", "rollout.max_response_len=8"])
        .args(["--set", "reward.types=[\"number\"]", "--num-prompts", "12", "--weights"])
        .arg(weights)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn samples_are_those_of_one_rank() {
    for (family, ranks) in [("llama", 2), ("qwen3_moe", 4)] {
        let dir = TempDir::new().unwrap();
        let weights = tiny_loop::weights_of(dir.path(), Some(family));
        let alone = samples(&weights, 1).unwrap();
        let Some(split) = samples(&weights, ranks) else { return };
        assert_eq!((split.len(), alone.len()), (12, 12));
        assert_same(&split, &alone);
    }
}

fn assert_same(split: &[Value], alone: &[Value]) {
    for (split, alone) in split.iter().zip(alone) {
        assert_eq!(split["tokens"], alone["tokens"]);
        let log_probs = |sample: &Value| {
            let list = sample["rollout_log_probs"].as_array().unwrap().iter();
            list.map(|log_prob| log_prob.as_f64().unwrap()).collect::<Vec<_>>()
        };
        for (split, alone) in log_probs(split).iter().zip(log_probs(alone)) {
            assert!((split - alone).abs() < 1e-5, "{split} and {alone}");
        }
    }
}

/// The process of rank 1 of a tool that follows `run`.
fn second_rank(run: &Path) -> Option<String> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let has = |path: PathBuf, text: &str| {
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default())
            .split('\0')
            .any(|word| word.contains(text))
    };
    let is_it = |process: &PathBuf| {
        let environment = || process.join("environ");
        let is_rank_1 = has(environment(), "PMIX_RANK=1") || has(environment(), "OMPI_COMM_WORLD_RANK=1");
        is_rank_1 && has(process.join("cmdline"), &run.display().to_string())
    };
    let found = entries.into_iter().find(is_it)?;
    Some(found.file_name().unwrap().to_string_lossy().into_owned())
}

fn follow(run: &Path) -> Option<Child> {
    let mut command = rollout(2)?;
    Some(command.arg("--follow").arg(run).stderr(Stdio::piped()).spawn().unwrap())
}

/// A trainer that has published version 0 and stands still, so that the loop does the first step and waits.
fn stopped_trainer(run: &Path) -> Child {
    let trainer = start(TRAIN, &[], run);
    wait_until(run, "version 0", || run.join("version/000000.e001.json").exists());
    tiny_loop::signal(&trainer, "-STOP");
    trainer
}

fn end(mut child: Child) {
    tiny_loop::kill(&mut child);
}

#[test]
fn a_loop_with_a_split_engine_learns_and_survives_the_kill_of_a_rank() {
    let dir = TempDir::new().unwrap();
    let run = run_dir(&dir, "run", &["rollout.tp=2", "sync.transport=shm"]);
    let mut trainer = stopped_trainer(&run);
    let Some(job) = follow(&run) else { return end(trainer) };
    wait_until(&run, "a manifest", || manifest(&run, 0).exists());
    let rank = second_rank(&run).expect("a second rank");
    assert!(Command::new("kill").args(["-9", &rank]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    assert!(!output.status.success() && told(&output).contains("rank 1"), "{}", told(&output));
    tiny_loop::signal(&trainer, "-CONT");
    let output = follow(&run).unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert!(trainer.wait().unwrap().success(), "{}", log(&run));
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    assert!(deeds.last_reward > deeds.first_reward + 0.1, "{} {}", deeds.first_reward, deeds.last_reward);
    let output = Command::new(env!("CARGO_BIN_EXE_slime-stat")).arg(&run).arg("--json").output().unwrap();
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    for step in stat["steps"].as_array().unwrap() {
        let apart = step["train/train_rollout_logprob_abs_diff"].as_f64().unwrap();
        assert!(apart < 1e-5, "generation and training differ by {apart}");
    }
}

#[test]
fn a_drained_engine_ends_on_all_ranks_and_goes_on() {
    let dir = TempDir::new().unwrap();
    let run = run_dir(&dir, "run", &["rollout.tp=2"]);
    let mut trainer = stopped_trainer(&run);
    let Some(job) = follow(&run) else { return end(trainer) };
    wait_until(&run, "a manifest", || manifest(&run, 0).exists());
    tiny_loop::signal(&job, "-TERM");
    let output = job.wait_with_output().unwrap();
    tiny_loop::signal(&trainer, "-CONT");
    assert!(!told(&output).contains("panicked"), "{}", told(&output));
    let output = follow(&run).unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert!(trainer.wait().unwrap().success(), "{}", log(&run));
    assert_consumed_once(&run, &deeds(&run));
}

#[test]
fn worlds_and_layouts_that_do_not_fit_are_refused_before_weights_are_read() {
    let dir = TempDir::new().unwrap();
    let weights = tiny_loop::weights(dir.path());
    let refused = |mut command: Command, sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let more = [
            "--set",
            "data.environment=arithmetic",
            "--set",
            "reward.types=[\"number\"]",
            "--num-prompts",
            "1",
        ];
        let output = command.args(sets).args(more).arg("--weights").arg(&weights).output().unwrap();
        assert_eq!(output.status.code(), Some(78), "{}", told(&output));
        told(&output)
    };
    let alone = || Command::new(ROLLOUT);
    let text = refused(alone(), &["rollout.tp=2"]);
    assert!(
        text.contains("expected a world of 2 ranks (rollout.tp = 2), but the launcher started one rank"),
        "{text}"
    );
    assert!(text.contains("hint: mpirun -n 2"), "{text}");
    let text = refused(alone(), &["rollout.tp=0"]);
    assert!(text.contains("rollout.tp"), "{text}");
    let Some(three) = rollout(3) else { return };
    let text = refused(three, &["rollout.tp=3"]);
    assert!(
        text.contains("rollout.tp: expected a divisor of the model's") && text.contains("hint: rollout.tp "),
        "{text}"
    );
    let text = refused(rollout(2).unwrap(), &["rollout.tp=2", "rollout.ep=2"]);
    assert!(text.contains("rollout.ep: the model has no experts"), "{text}");
    let mut dry = alone();
    dry.arg("--dry-run");
    let text = refused(dry, &["rollout.tp=3"]);
    assert!(text.contains("rollout.tp: expected a divisor"), "{text}");
}
