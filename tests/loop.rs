//! The real loop on a tiny model: what it trains, and that killing its tools at any moment costs nothing but time.

#[path = "fixtures/tiny_weights.rs"]
mod tiny_weights;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use slime_record::Manifest;
use tempfile::TempDir;

/// Steps of a run.
const NUM_STEPS: u64 = 6;
/// A loop that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(3 * 60);
const ROLLOUT: &str = env!("CARGO_BIN_EXE_slime-rollout");
const TRAIN: &str = env!("CARGO_BIN_EXE_slime-train");
const REWARD: &str = env!("CARGO_BIN_EXE_slime-reward");

/// A tiny model of random weights whose every token is a number, so that `number`-like rewards have something to see.
fn weights(dir: &Path) -> PathBuf {
    let weights = dir.join("weights");
    fs::create_dir(&weights).expect("writable");
    tiny_weights::write(&weights);
    weights
}

/// What the configuration of the tests changes in configs/tiny.toml.
fn tiny_sets(weights: &Path) -> Vec<String> {
    let sets = [
        &format!("model.path={}", weights.display()),
        &format!("run.num_steps={NUM_STEPS}"),
        "reward.types=[\"format:regex=[02468]$\"]",
        "rollout.rollout_batch_size=4",
        "rollout.n_samples_per_prompt=8",
        "rollout.max_in_flight=16",
        "train.lr=3e-2",
    ];
    sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]).collect()
}

/// A run directory whose policy shall learn to end with an even number.
fn run_dir(dir: &TempDir, name: &str, sets: &[&str]) -> PathBuf {
    let (run, weights) = (dir.path().join(name), dir.path().join("weights"));
    if !weights.exists() {
        self::weights(dir.path());
    }
    fs::create_dir(&run).expect("writable");
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/tiny.toml");
    let output = Command::new(TRAIN)
        .arg("--config")
        .arg(configs)
        .args(tiny_sets(&weights))
        .args(sets.iter().flat_map(|set| ["--set", set]))
        .arg("--dry-run")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(run.join("run.toml"), output.stdout).expect("writable");
    run
}

/// One resident tool, started again whenever it is killed.
struct Tool {
    program: &'static str,
    roles: &'static [&'static str],
    child: Child,
}

/// Which tools make a loop.
const TOGETHER: [(&str, &[&str]); 2] = [(TRAIN, &[]), (ROLLOUT, &[])];
const APART: [(&str, &[&str]); 5] = [
    (TRAIN, &[]),
    (ROLLOUT, &["--builder"]),
    (ROLLOUT, &["--replica", "0"]),
    (ROLLOUT, &["--replica", "1"]),
    (REWARD, &[]),
];
const APART_SETS: [&str; 2] = ["rollout.num_replicas=2", "reward.placement=separate"];

fn start(program: &str, roles: &[&str], run: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(run.join("log.txt")).expect("writable");
    Command::new(program)
        .arg("--follow")
        .arg(run)
        .args(roles)
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("it starts")
}

fn start_all(tools: &[(&'static str, &'static [&'static str])], run: &Path) -> Vec<Tool> {
    tools.iter().map(|&(program, roles)| Tool { program, roles, child: start(program, roles, run) }).collect()
}

fn log(run: &Path) -> String {
    fs::read_to_string(run.join("log.txt")).unwrap_or_default()
}

fn kill(child: &mut Child) {
    child.kill().expect("our own child");
    child.wait().expect("our own child");
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill is there");
    assert!(status.success());
}

fn wait_until(run: &Path, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} never came:\n{}", log(run));
        sleep(Duration::from_millis(2));
    }
}

/// Waits for all tools; a tool that ends by itself before the run is over has failed.
fn finish(tools: Vec<Tool>, run: &Path) {
    let started = Instant::now();
    for mut tool in tools {
        loop {
            if let Some(status) = tool.child.try_wait().expect("our own child") {
                assert!(status.success(), "{} {:?}: {status}\n{}", tool.program, tool.roles, log(run));
                break;
            }
            if started.elapsed() > PATIENCE {
                let _ = tool.child.kill();
                panic!("{} {:?} hangs:\n{}", tool.program, tool.roles, log(run));
            }
            sleep(Duration::from_millis(5));
        }
    }
}

fn whole(run: &Path, tools: &[(&'static str, &'static [&'static str])]) {
    finish(start_all(tools, run), run);
}

/// What a finished run did.
#[derive(Debug, PartialEq)]
struct Deeds {
    manifests: Vec<Manifest>,
    weights: Vec<u8>,
    first_reward: f64,
    last_reward: f64,
}

fn manifest(run: &Path, step: u64) -> PathBuf {
    run.join(format!("rollout/{step:06}/MANIFEST.json"))
}

/// The newest name `<number>.e<epoch>` in a folder.
fn newest(folder: &Path, version: u64) -> Option<PathBuf> {
    let prefix = format!("{version:06}.e");
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    names
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .max()
}

fn deeds(run: &Path) -> Deeds {
    let read = |step| {
        let bytes = fs::read(manifest(run, step)).unwrap_or_else(|error| panic!("step {step}: {error}"));
        serde_json::from_slice(&bytes).expect("a manifest")
    };
    let weights = newest(&run.join("weights"), NUM_STEPS).expect("the last version is on disk");
    let output =
        Command::new(env!("CARGO_BIN_EXE_slime-stat")).arg(run).arg("--json").output().expect("it starts");
    let stat: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(stat["outcome"], "done");
    let steps = stat["steps"].as_array().expect("a list");
    assert_eq!(steps.len() as u64, NUM_STEPS);
    let reward =
        |step: Option<&Value>| step.and_then(|step| step["rollout/raw_reward"].as_f64()).expect("a reward");
    Deeds {
        manifests: (0..NUM_STEPS).map(read).collect(),
        weights: fs::read(weights.join("model.safetensors")).expect("weights"),
        first_reward: reward(steps.first()),
        last_reward: reward(steps.last()),
    }
}

impl Deeds {
    /// Prompts of every step in training order.
    fn schedule(&self) -> Vec<Vec<(u64, u32, u64, &str)>> {
        self.manifests
            .iter()
            .map(|manifest| {
                manifest.groups.iter().map(|g| (g.step, g.group, g.cursor, g.prompt_id.as_str())).collect()
            })
            .collect()
    }

    /// Hashes of the tokens of every sample in training order.
    fn tokens(&self) -> Vec<u64> {
        let groups = self.manifests.iter().flat_map(|manifest| &manifest.groups);
        groups.flat_map(|group| group.samples.iter().map(|sample| sample.tokens_hash)).collect()
    }
}

/// Nothing lost, nothing doubled: each step has its groups, none is in two, and the optimizer took one step for each.
fn assert_consumed_once(run: &Path, deeds: &Deeds) {
    let mut seen = BTreeSet::new();
    for manifest in &deeds.manifests {
        assert_eq!(manifest.groups.len(), 4);
        for group in &manifest.groups {
            assert!(seen.insert((group.step, group.group)), "group {}/{} twice", group.step, group.group);
            assert_eq!(group.samples.len(), 8);
        }
    }
    let checkpoint = newest(&run.join("checkpoint"), NUM_STEPS).expect("the last checkpoint");
    let index = fs::read(checkpoint.join("index.json")).expect("an index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    assert_eq!(index["meta"]["optimizer_step"], NUM_STEPS, "{index}");
}

/// Kills random tools at random moments and starts them again, until the run is done; returns the number of kills.
fn torture(run: &Path, roles: &[(&'static str, &'static [&'static str])], seed: u64, longest_ms: u64) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tools = start_all(roles, run);
    let mut num_kills = 0;
    let started = Instant::now();
    while !run.join("control/done").exists() {
        assert!(started.elapsed() < PATIENCE, "the run never ends, seed {seed}:\n{}", log(run));
        sleep(Duration::from_millis(rng.random_range(0..longest_ms)));
        let tool = &mut tools[rng.random_range(0..roles.len())];
        if let Some(status) = tool.child.try_wait().expect("our own child") {
            assert!(
                status.success(),
                "{} {:?}: {status}, seed {seed}\n{}",
                tool.program,
                tool.roles,
                log(run)
            );
            continue;
        }
        kill(&mut tool.child);
        num_kills += 1;
        tool.child = start(tool.program, tool.roles, run);
    }
    finish(tools, run);
    num_kills
}

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
        self::weights(dir.path());
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
fn arrival_order_with_a_filter_keeps_its_bounds_under_kills() {
    let dir = TempDir::new().expect("a folder");
    let sets = [
        "run.max_staleness=1",
        "run.order=arrival",
        "rollout.dynamic_filter=nonzero_std",
        "rollout.over_sampling_batch_size=6",
        APART_SETS[0],
        APART_SETS[1],
    ];
    let run = run_dir(&dir, "arrival", &sets);
    assert!(torture(&run, &APART, 77, 1200) > 0);
    let deeds = deeds(&run);
    assert_consumed_once(&run, &deeds);
    for manifest in &deeds.manifests {
        assert!(manifest.staleness() <= 1, "step {}", manifest.step);
        let groups = manifest.groups.iter().map(|group| (group.step, group.group));
        let refused: BTreeSet<_> =
            manifest.refused.iter().map(|refusal| (refusal.step, refusal.group)).collect();
        assert!(groups.clone().all(|group| !refused.contains(&group)), "step {}", manifest.step);
    }
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
