//! A run whose model is split over ranks of MPI: a killed rank ends its job, and what was trained goes on on other layouts.
#![allow(clippy::unwrap_used)]

#[path = "fixtures/launcher.rs"]
mod launcher;
#[path = "fixtures/tiny_weights.rs"]
#[allow(dead_code, reason = "the model is named here")]
mod tiny_weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;
use slime_weights::{WeightDir, decode_f32};
use tempfile::TempDir;

const TRAIN: &str = env!("CARGO_BIN_EXE_slime-train");
const ROLLOUT: &str = env!("CARGO_BIN_EXE_slime-rollout");

/// Four steps of supervised training with a checkpoint every two.
fn run_dir(dir: &TempDir) -> PathBuf {
    let (weights, run) = (dir.path().join("weights"), dir.path().join("run"));
    fs::create_dir(&weights).unwrap();
    fs::create_dir_all(run.join("control")).unwrap();
    tiny_weights::write_model(&weights, "glm4_moe");
    let row =
        |i: u32| json!({"prompt": format!("{} 5 {}", i % 9, i % 7), "completion": format!("{} 3", i % 5)});
    let rows: String = (0..32).map(|i| row(i).to_string() + "\n").collect();
    fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    run
}

fn configure(dir: &TempDir, run: &Path, [tp, ep]: [u32; 2]) {
    let text = format!(
        "[run]\nnum_steps = 4\nmax_staleness = 0\n[model]\npath = \"{0}/weights\"\n[data]\nkind = \"conversations\"\n\
         prompts = \"{0}/rows.jsonl\"\napply_chat_template = false\n[rollout]\nrollout_batch_size = 8\n[train]\nlr = 1e-3\n\
         [algorithm]\nloss = \"sft\"\n[checkpoint]\ninterval = 2\n[parallel]\ntp = {tp}\nep = {ep}\n",
        dir.path().display()
    );
    fs::write(run.join("run.toml"), text).unwrap();
}

fn train(ranks: usize, run: &Path, more: &[&str]) -> Option<Child> {
    let mut command = launcher::mpirun(ranks)?;
    command.env("OMP_NUM_THREADS", "1").args([TRAIN, "--follow"]).arg(run).args(more);
    Some(command.stderr(Stdio::piped()).spawn().unwrap())
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits at most two minutes.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2400 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} never came");
}

/// The processes of the job that trains `run`.
fn processes(run: &Path) -> Vec<PathBuf> {
    let is_of_run = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&run.display().to_string())
    };
    let entries = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter(is_of_run).collect()
}

/// The process of rank 1 of the job that trains `run`.
fn second_rank(run: &Path) -> String {
    let is_rank_1 = |process: &PathBuf| {
        let variables = fs::read(process.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&variables)
            .split('\0')
            .any(|variable| variable == "PMIX_RANK=1" || variable == "OMPI_COMM_WORLD_RANK=1")
    };
    let found = processes(run).into_iter().find(is_rank_1).expect("a second rank");
    found.file_name().unwrap().to_string_lossy().into_owned()
}

fn weights(run: &Path, place: &str) -> Vec<(String, Vec<f32>)> {
    let weights = WeightDir::open(run.join("weights").join(place)).unwrap();
    let read = |name: &str| {
        let view = weights.tensor(name).unwrap();
        (name.to_owned(), decode_f32(name, &view.bytes, view.dtype).unwrap())
    };
    weights.names().map(read).collect()
}

#[test]
fn split_run_survives_a_killed_rank_and_goes_on_on_other_layouts() {
    let dir = TempDir::new().unwrap();
    let run = run_dir(&dir);
    configure(&dir, &run, [2, 2]);
    // Nothing generates yet, so the trainer publishes what it starts from and waits.
    let Some(job) = train(2, &run, &[]) else { return };
    wait_until("version 0", || run.join("version/000000.e001.json").exists());
    assert!(Command::new("kill").args(["-9", &second_rank(&run)]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    assert!(!output.status.success() && told(&output).contains("rank 1"), "{}", told(&output));
    // The launcher may end before its last rank.
    wait_until("the end of every rank", || processes(&run).is_empty());

    let mut rollout = Command::new(ROLLOUT).arg("--follow").arg(&run).stderr(Stdio::null()).spawn().unwrap();
    let first = train(2, &run, &[]).unwrap().wait_with_output().unwrap();
    let _ = (rollout.kill(), rollout.wait());
    assert!(first.status.success(), "{}", told(&first));
    let expected = weights(&run, "000004.e002");
    // From the checkpoint in the middle, on more ranks and on one.
    for (place, ranks, layout) in [("000004.e003", 4, [4, 4]), ("000004.e004", 1, [1, 1])] {
        configure(&dir, &run, layout);
        let output = train(ranks, &run, &["--resume", "2"]).unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        for ((name, got), (_, expected)) in weights(&run, place).iter().zip(&expected) {
            let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "{place}: {name} differs by {worst}");
        }
    }
}
