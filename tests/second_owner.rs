//! A second owner of a run is refused while the first lives, whichever tool it is; after its death, and with
//! --takeover, it is not.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

const TRAIN: &str = env!("CARGO_BIN_EXE_slime-train");
const REWARD: &str = env!("CARGO_BIN_EXE_slime-reward");

/// A run that waits for its first step for ever.
fn run_dir(dir: &TempDir) -> PathBuf {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    let run = dir.path().join("run");
    fs::create_dir_all(run.join("control")).unwrap();
    let config = format!(
        "[run]\nnum_steps = 1\n[model]\npath = \"{}\"\n[data]\nenvironment = \"arithmetic\"\n[rollout]\n\
         rollout_batch_size = 2\nn_samples_per_prompt = 3\n[reward]\nplacement = \"separate\"\n",
        model.display()
    );
    fs::write(run.join("run.toml"), config).unwrap();
    run
}

fn follow(program: &str, run: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.arg("--follow").arg(run).args(more).stderr(Stdio::piped()).spawn().unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_for(path: &Path) {
    for _ in 0..600 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} never appeared", path.display());
}

/// `claims` is the folder of the owner's incarnations.
fn check(program: &str, owner: &str, claims: &str) {
    let dir = TempDir::new().unwrap();
    let run = run_dir(&dir);
    let claim = |number: u32| run.join(claims).join(format!("{number:06}"));
    let mut first = follow(program, &run, &[]);
    wait_for(&claim(1));
    let second = follow(program, &run, &[]).wait_with_output().unwrap();
    let text = message(&second);
    assert_eq!(second.status.code(), Some(73), "{text}");
    let holder = format!("error: {owner} of this run is alive: process {} on ", first.id());
    assert!(text.contains(&holder) && text.contains("hint: wait for its end, or --takeover"), "{text}");
    assert!(!claim(2).exists(), "the refused one has claimed nothing");

    let third = follow(program, &run, &["--takeover"]);
    wait_for(&claim(2));
    let ended = first.wait().unwrap();
    assert_eq!(ended.code(), Some(75), "the first one ends and may be started again");

    let temporary = |process: u32| {
        let text = fs::read_to_string(claim(2)).unwrap();
        // The trainer's claim is its epoch, whose record names the holder.
        let record: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let holder = record.map_or(text, |record| record["holder"].as_str().unwrap().to_owned());
        assert!(holder.contains(&format!(".{process}.")), "{holder}");
        run.join(claims).join(format!(".tmp.{holder}.99"))
    };
    let left = temporary(third.id());
    fs::write(&left, "half").unwrap();
    let mut third = third;
    third.kill().unwrap();
    third.wait().unwrap();
    let fourth = follow(program, &run, &[]);
    wait_for(&claim(3));
    fs::write(run.join("control/stop"), "").unwrap();
    let fourth = fourth.wait_with_output().unwrap();
    assert_eq!(fourth.status.code(), Some(75), "{}", message(&fourth));
    assert!(!left.exists(), "what the killed one left half written is removed");
}

#[test]
fn second_trainer_is_refused() {
    check(TRAIN, "trainer", "epoch");
}

#[test]
fn second_reward_worker_is_refused() {
    check(REWARD, "reward.0", "owner/reward.0");
}
