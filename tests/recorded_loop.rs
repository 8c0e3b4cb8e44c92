//! Steps of recorded responses: committed without rewards and weights, the same when the tools are killed in the middle,
//! and evaluated by sampling all the same.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

#[path = "fixtures/chat_model.rs"]
mod chat_model;
#[path = "fixtures/published.rs"]
mod published;
#[path = "fixtures/tiny_weights.rs"]
mod tiny_weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::{Value, json};
use slime_record::{Manifest, Sample};
use tempfile::TempDir;

fn lines(rows: &[Value]) -> String {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    lines.join("\n") + "\n"
}

/// Steps of a run: three epochs of eight rows, four a step.
const NUM_STEPS: u64 = 6;

/// A run of conversations in `dir`, whose version 0 is published.
fn run_dir(dir: &TempDir, name: &str, more: &str) -> PathBuf {
    let run = dir.path().join(name);
    for folder in ["epoch", "version", "control"] {
        fs::create_dir_all(run.join(folder)).unwrap();
    }
    let config = format!(
        "[run]\nnum_epoch = 3\nmax_staleness = 1\n[model]\npath = \"{0}/model\"\n[data]\nkind = \"conversations\"\n\
         [[data.source]]\npath = \"{0}/a.jsonl\"\nweight = 3\n[[data.source]]\npath = \"{0}/b.jsonl\"\nweight = 1\n\
         [rollout]\nrollout_batch_size = 4\n{more}",
        dir.path().display()
    );
    fs::write(run.join("run.toml"), config).unwrap();
    fs::write(run.join("epoch/000001"), json!({"epoch": 1, "parent": null, "checkpoint": 0}).to_string())
        .unwrap();
    publish(&run, 0);
    run
}

/// What a trainer tells of a version; nobody reads weights.
fn publish(run: &Path, version: u64) {
    let publication = json!({"version": version, "epoch": 1, "transport": "disk", "hash": version});
    let (name, folder) = (format!("{version:06}.e001.json"), run.join("version"));
    fs::write(run.join("new"), publication.to_string()).unwrap();
    fs::rename(run.join("new"), folder.join(name)).unwrap();
}

fn wait_for(path: &Path, run: &Path) {
    for _ in 0..1200 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let log = fs::read_to_string(run.join("log.txt")).unwrap_or_default();
    panic!("{} never appeared:\n{log}", path.display());
}

fn start(run: &Path) -> Vec<Child> {
    let role = |role: &[&str]| {
        let log = fs::File::options().create(true).append(true).open(run.join("log.txt")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
        command.arg("--follow").arg(run).args(role).stderr(log).spawn().unwrap()
    };
    [&["--builder"][..], &["--replica", "0"], &["--replica", "1"]].map(role).into()
}

fn manifest(run: &Path, step: u64) -> PathBuf {
    run.join(format!("rollout/{step:06}/MANIFEST.json"))
}

/// Follows the run to its end in the place of a trainer; the tools are killed in these steps and started again.
fn follow(run: &Path, killed_in: &[u64]) -> Vec<Manifest> {
    let mut tools = start(run);
    for step in 0..NUM_STEPS {
        if killed_in.contains(&step) {
            for tool in &mut tools {
                tool.kill().unwrap();
                tool.wait().unwrap();
            }
            tools = start(run);
        }
        wait_for(&manifest(run, step), run);
        publish(run, step + 1);
    }
    fs::write(run.join("control/done"), "").unwrap();
    for tool in tools {
        let output = tool.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", fs::read_to_string(run.join("log.txt")).unwrap());
    }
    let read = |step| serde_json::from_slice(&fs::read(manifest(run, step)).unwrap()).unwrap();
    (0..NUM_STEPS).map(read).collect()
}

/// The prompts and tokens of all samples in training order.
fn content(manifests: &[Manifest]) -> Vec<(u64, u32, String, Vec<u64>)> {
    let groups = manifests.iter().flat_map(|manifest| &manifest.groups);
    groups
        .map(|group| {
            let hashes = group.samples.iter().map(|sample| sample.tokens_hash).collect();
            (group.step, group.group, group.prompt_id.clone(), hashes)
        })
        .collect()
}

#[test]
fn builder_commits_conversations_without_rewards_and_killed_ones_go_on_with_the_same_samples() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("model")).unwrap();
    chat_model::write(&dir.path().join("model"));
    for (name, num) in [("a", 5), ("b", 3)] {
        let rows: Vec<Value> = (0..num)
            .map(|i| json!({"prompt": format!("{name}{i}?"), "completion": format!("{name}{i}")}))
            .collect();
        fs::write(dir.path().join(format!("{name}.jsonl")), lines(&rows)).unwrap();
    }
    let replicas = "num_replicas = 2\n";
    let calm = run_dir(&dir, "calm", replicas);
    let calm_manifests = follow(&calm, &[]);
    let killed = follow(&run_dir(&dir, "killed", replicas), &[1, 2, 4]);
    assert_eq!(content(&killed), content(&calm_manifests));
    for manifest in &calm_manifests {
        assert_eq!((manifest.groups.len(), manifest.columns().len()), (4, 0));
        assert!(manifest.staleness() <= 1 && manifest.account.masked == 0);
        let mut trained = 0;
        for group in &manifest.groups {
            let segment = slime_record::read_segment(&calm.join(&group.segment.path)).unwrap();
            let sample = segment.sample(group.first_row as usize).unwrap();
            assert_eq!((sample.prompt_id.as_str(), group.samples.len()), (group.prompt_id.as_str(), 1));
            let name = sample.response.trim_end();
            assert!(
                sample.prompt == format!("\"{name}?\"") && sample.source == format!("{}.jsonl", &name[..1])
            );
            trained += sample.loss_mask.iter().map(|mask| u64::from(*mask)).sum::<u64>();
        }
        assert_eq!(manifest.account.trained, trained);
    }
    assert!(!calm.join("column").exists());
    let metrics = fs::read_to_string(calm.join("metrics/rollout.jsonl")).unwrap();
    assert_eq!(metrics.lines().count() as u64, NUM_STEPS);
    assert!(metrics.contains("\"rollout/num_samples\":4") && !metrics.contains("reward"), "{metrics}");
    let stat = Command::new(env!("CARGO_BIN_EXE_slime-stat")).arg(&calm).arg("--json").output().unwrap();
    assert!(stat.status.success(), "{}", String::from_utf8_lossy(&stat.stderr));
}

#[test]
fn evaluations_are_sampled_whatever_is_trained_on() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("model")).unwrap();
    tiny_weights::write(&dir.path().join("model"));
    for name in ["a", "b"] {
        let rows: Vec<Value> =
            (1..5).map(|i| json!({"prompt": format!("{i}"), "completion": "7 8"})).collect();
        fs::write(dir.path().join(format!("{name}.jsonl")), lines(&rows)).unwrap();
    }
    fs::write(dir.path().join("eval.jsonl"), "{\"prompt\": \"3 4\", \"label\": \"7\"}\n").unwrap();
    let eval = format!(
        "[eval.test]\nprompts = \"{}/eval.jsonl\"\ninterval = 100\nmax_response_len = 4\n",
        dir.path().display()
    );
    let run = run_dir(&dir, "run", &eval);
    let config = fs::read_to_string(run.join("run.toml")).unwrap();
    let config = config
        .replace("kind = ", "apply_chat_template = false\nkind = ")
        .replace("max_staleness = 1", "max_staleness = 0");
    fs::write(run.join("run.toml"), &config).unwrap();
    published::publish_first(&run, &dir.path().join("model"));
    let log = fs::File::create(run.join("log.txt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
    let mut tool = command.arg("--follow").arg(&run).stderr(log).spawn().unwrap();
    wait_for(&manifest(&run, 0), &run);
    wait_for(&run.join("eval/000000.e001/DONE"), &run);
    tool.kill().unwrap();
    tool.wait().unwrap();
    let metrics = fs::read_to_string(run.join("metrics/rollout.jsonl")).unwrap();
    assert!(metrics.contains("\"set\":\"test\"") && metrics.contains("reward_mean"), "{metrics}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-rollout"));
    let once = command.arg("--config").arg(run.join("run.toml")).args(["--eval", "test"]).output().unwrap();
    let sample: Sample = serde_json::from_slice(&once.stdout).unwrap();
    assert_eq!(sample.prompt, "\"3 4\"");
}
