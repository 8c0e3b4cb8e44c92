//! The real loop on a tiny model: what it trains, and that killing its tools at any moment costs nothing but time.

#[path = "fixtures/tiny_loop.rs"]
mod tiny_loop;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tiny_loop::{
    APART, APART_SETS, Deeds, NUM_STEPS, TOGETHER, TRAIN, assert_consumed_once, deeds, kill, log, manifest,
    newest, run_dir, signal, start_all, tiny_sets, torture, wait_until, whole,
};

fn assert_like(run: &Path, undisturbed: &Deeds, seed: u64) {
    let disturbed = deeds(run);
    assert_eq!(disturbed.schedule(), undisturbed.schedule(), "seed {seed}");
    assert_consumed_once(run, &disturbed);
    let difference = (disturbed.last_reward - undisturbed.last_reward).abs();
    assert!(difference <= 0.25, "seed {seed}: {} and {}", disturbed.last_reward, undisturbed.last_reward);
}

/// The run that nothing disturbs; it learns.
fn undisturbed(dir: &TempDir) -> Deeds {
    let run = run_dir(dir, "calm", &[]);
    whole(&run, &TOGETHER);
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    assert!(deeds.first_reward < 0.65 && deeds.last_reward > 0.75, "{}", log(&run));
    deeds
}

#[test]
fn killed_between_steps_gives_the_same_bits_as_never_interrupted() {
    let dir = TempDir::new().expect("a folder");
    let calm = undisturbed(&dir);
    let run = run_dir(&dir, "killed", &[]);
    for step in 0..NUM_STEPS - 1 {
        let mut tools = start_all(&TOGETHER, &run);
        wait_until(&run, "a manifest", || manifest(&run, step).exists());
        // Stopped, the rollout cannot begin the next step, so the kill falls between two.
        signal(&tools[1].child, "-STOP");
        let checkpoints = run.join("checkpoint");
        let is_complete =
            || newest(&checkpoints, step + 1).is_some_and(|path| path.join("COMPLETE").exists());
        wait_until(&run, "a checkpoint", is_complete);
        for tool in &mut tools {
            kill(&mut tool.child);
        }
    }
    whole(&run, &TOGETHER);
    let killed = deeds(&run);
    assert_consumed_once(&run, &killed);
    assert_eq!((killed.schedule(), killed.tokens()), (calm.schedule(), calm.tokens()));
    assert!(killed.weights == calm.weights, "the last weights differ");
}

#[test]
fn drained_and_started_again_gives_the_same_bits() {
    let dir = TempDir::new().expect("a folder");
    let calm = run_dir(&dir, "calm", &["checkpoint.interval=4"]);
    whole(&calm, &TOGETHER);
    let run = run_dir(&dir, "drained", &["checkpoint.interval=4"]);
    for step in [0, 2] {
        let tools = start_all(&TOGETHER, &run);
        wait_until(&run, "a manifest", || manifest(&run, step).exists());
        for mut tool in tools {
            signal(&tool.child, "-USR2");
            let code = tool.child.wait().expect("our own child").code();
            assert_eq!(code, Some(75), "{}\n{}", tool.program, log(&run));
        }
    }
    whole(&run, &TOGETHER);
    let (calm, drained) = (deeds(&calm), deeds(&run));
    assert_eq!((drained.schedule(), drained.tokens()), (calm.schedule(), calm.tokens()));
    assert!(drained.weights == calm.weights, "the last weights differ");
}

#[test]
fn killed_anywhere_loses_and_doubles_nothing() {
    let dir = TempDir::new().expect("a folder");
    let calm = undisturbed(&dir);
    let (mut num_kills, mut seed) = (0, 0);
    while num_kills < 20 {
        let (roles, sets): (&[_], &[_]) =
            if seed % 2 == 0 { (&TOGETHER, &[]) } else { (&APART, &APART_SETS) };
        let run = run_dir(&dir, &format!("killed-{seed}"), sets);
        num_kills += torture(&run, roles, seed, 1200);
        assert_like(&run, &calm, seed);
        seed += 1;
    }
}

/// sbatch/loop.sh on `run`, as a user starts it.
fn loop_script(dir: &TempDir, run: &Path) -> Child {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let weights = dir.path().join("weights");
    if !weights.exists() {
        tiny_loop::weights(dir.path());
    }
    Command::new("bash")
        .arg(home.join("sbatch/loop.sh"))
        .arg(home.join("configs/tiny.toml"))
        .args(tiny_sets(&weights))
        .env("SLIME_RUN_DIR", run)
        .env("SLIME_BIN", Path::new(TRAIN).parent().expect("a folder"))
        .env_remove("SLURM_SUBMIT_DIR")
        .env("OMP_NUM_THREADS", "1")
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash is there")
}

#[test]
fn loop_script_drains_on_term_goes_on_and_is_done_when_started_again() {
    let dir = TempDir::new().expect("a folder");
    let run = dir.path().join("run");
    let script = loop_script(&dir, &run);
    wait_until(&run, "a manifest", || manifest(&run, 1).exists());
    signal(&script, "-TERM");
    let output = script.wait_with_output().expect("our own child");
    assert_eq!(output.status.code(), Some(75), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!run.join("control/done").exists());
    for _ in 0..2 {
        let output = loop_script(&dir, &run).wait_with_output().expect("our own child");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_consumed_once(&run, &deeds(&run));
    }
}

#[test]
fn tool_that_fails_ends_the_loop_with_its_code() {
    let dir = TempDir::new().expect("a folder");
    let run = run_dir(&dir, "run", &[]);
    let toml = fs::read_to_string(run.join("run.toml")).expect("it was written");
    let toml = toml.replace("environment = \"arithmetic\"", "prompts = \"/nonexistent/prompts.jsonl\"");
    fs::write(run.join("run.toml"), toml).expect("writable");
    let output = loop_script(&dir, &run).wait_with_output().expect("our own child");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{stderr}");
    assert!(stderr.contains("slime-rollout: error: /nonexistent/prompts.jsonl"), "{stderr}");
}

#[test]
#[ignore = "a thousand kills take ten minutes or more"]
fn a_thousand_kills_lose_and_double_nothing() {
    let dir = TempDir::new().expect("a folder");
    let calm = undisturbed(&dir);
    let (mut num_kills, mut seed) = (0, 1000);
    while num_kills < 1000 {
        let variants: [(&[_], &[_]); 4] = [
            (&TOGETHER, &[]),
            (&APART, &APART_SETS),
            (&TOGETHER, &["checkpoint.interval=3", "checkpoint.keep_last=1"]),
            (&APART, &["rollout.num_replicas=2", "reward.placement=separate", "checkpoint.interval=2"]),
        ];
        let (roles, sets) = variants[seed as usize % variants.len()];
        let run = run_dir(&dir, &format!("killed-{seed}"), sets);
        num_kills += torture(&run, roles, seed, 900);
        assert_like(&run, &calm, seed);
        fs::remove_dir_all(&run).expect("our own folder");
        seed += 1;
    }
    eprintln!("{num_kills} kills in {} runs", seed - 1000);
}
