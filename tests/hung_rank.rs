//! A rank of a split model that dies or stands still in the midst of training ends its job, and the job says which one it was.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixtures/launcher.rs"]
mod launcher;
#[path = "fixtures/tiny_weights.rs"]
#[allow(dead_code, reason = "the model is named here")]
mod tiny_weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

const TRAIN: &str = env!("CARGO_BIN_EXE_slime-train");
const ROLLOUT: &str = env!("CARGO_BIN_EXE_slime-rollout");
/// What comes later than this never comes.
const PATIENCE: Duration = Duration::from_secs(3 * 60);
/// `watchdog.step_s`: much longer than a step of the tiny model.
const STEP_S: u64 = 10;

/// Supervised training that goes on for longer than any test, split in two along `axis`.
fn run_dir(dir: &TempDir, axis: &str) -> PathBuf {
    let (weights, run) = (dir.path().join("weights"), dir.path().join("run"));
    fs::create_dir(&weights).unwrap();
    fs::create_dir_all(run.join("control")).unwrap();
    fs::create_dir_all(run.join("attempt-0/log")).unwrap();
    tiny_weights::write_model(&weights, "qwen3");
    let row =
        |i: u32| json!({"prompt": format!("{} 5 {}", i % 9, i % 7), "completion": format!("{} 3", i % 5)});
    let rows: String = (0..32).map(|i| row(i).to_string() + "\n").collect();
    fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    let text = format!(
        "[run]\nnum_steps = 100000\n[model]\npath = \"{0}/weights\"\n[data]\nkind = \"conversations\"\n\
         prompts = \"{0}/rows.jsonl\"\napply_chat_template = false\n[rollout]\nrollout_batch_size = 8\n\
         [train]\nlr = 1e-3\nmax_tokens_per_gpu = 32\n[algorithm]\nloss = \"sft\"\n[parallel]\n{axis} = 2\n\
         [watchdog]\nstep_s = {STEP_S}\n",
        dir.path().display()
    );
    fs::write(run.join("run.toml"), text).unwrap();
    run
}

fn wait_until(what: &str, run: &Path, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} never came:\n{}", log(run));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn log(run: &Path) -> String {
    fs::read_to_string(run.join("log.txt")).unwrap_or_default()
}

/// The process of rank 1, by its note.
fn second_rank(run: &Path) -> u32 {
    let notes = fs::read_dir(run.join("attempt-0/rank")).unwrap().filter_map(Result::ok);
    let names = notes.map(|note| note.file_name().into_string().unwrap());
    let pid = |name: String| {
        name.strip_prefix("trainer.1.")?.strip_suffix(".json")?.rsplit('.').next()?.parse().ok()
    };
    let pids: Vec<u32> = names.filter_map(pid).collect();
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

/// Ends a child that the test started, whatever comes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// The exit code of the job and what it said, after rank 1 got `signal` when some steps were trained.
fn end_of_job(axis: &str, signal: &str) -> Option<(Option<i32>, String)> {
    let dir = TempDir::new().unwrap();
    let run = run_dir(&dir, axis);
    let mut trainer = launcher::mpirun(2)?;
    let log_file = fs::File::create(run.join("log.txt")).unwrap();
    trainer.env("OMP_NUM_THREADS", "1").env("SLIME_ATTEMPT_DIR", run.join("attempt-0"));
    trainer.args([TRAIN, "--follow"]).arg(&run).stderr(log_file).stdout(Stdio::null());
    let mut trainer = Running(trainer.spawn().unwrap());
    let rollout = Command::new(ROLLOUT).arg("--follow").arg(&run).stderr(Stdio::null()).spawn().unwrap();
    let _rollout = Running(rollout);
    wait_until("version 3", &run, || run.join("version/000003.e001.json").exists());
    let pid = second_rank(&run).to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let mut status = None;
    wait_until("the end of the job", &run, || {
        status = trainer.0.try_wait().unwrap();
        status.is_some()
    });
    // The launcher may end before its last rank.
    wait_until("the end of rank 1", &run, || {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
            || !Path::new(&format!("/proc/{pid}")).exists()
    });
    Some((status.and_then(|status| status.code()), log(&run)))
}

#[test]
fn a_rank_that_dies_ends_its_job_with_its_name() {
    for axis in ["tp", "pp"] {
        let Some((code, said)) = end_of_job(axis, "-KILL") else { return };
        assert!(code != Some(0), "{axis}: {said}");
        assert!(said.contains("rank 1") && said.contains("signal 9"), "{axis}: {said}");
    }
}

#[test]
fn a_rank_that_stands_still_ends_its_job_with_its_name() {
    for axis in ["tp", "pp"] {
        let Some((code, said)) = end_of_job(axis, "-STOP") else { return };
        assert_eq!(code, Some(124), "{axis}: {said}");
        assert!(
            said.contains(&format!("trainer.0: no progress in section step for {STEP_S} s")),
            "{axis}: {said}"
        );
        assert!(said.contains("nothing came from trainer.1 (process "), "{axis}: {said}");
    }
}
