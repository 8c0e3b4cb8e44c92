//! The quickstart as a user runs it: the real model, both stages, and the learning it promises.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn stat(run: &Path) -> Value {
    let output =
        Command::new(env!("CARGO_BIN_EXE_slime-stat")).arg(run).arg("--json").output().expect("it starts");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Reward of the first step, and the mean of the last three: one prompt in eight that is always missed moves a step
/// by an eighth.
fn rewards(run: &Value) -> (f64, f64) {
    let steps = run["steps"].as_array().expect("a list");
    let rewards: Vec<f64> = steps.iter().filter_map(|step| step["rollout/raw_reward"].as_f64()).collect();
    (rewards[0], rewards[rewards.len() - 3..].iter().sum::<f64>() / 3.0)
}

/// Reward of the first and the last evaluation of a set.
fn evaluations(run: &Value, set: &str) -> (f64, f64) {
    let all = run["eval"].as_array().expect("a list");
    let of_set: Vec<f64> =
        all.iter().filter(|row| row["set"] == set).filter_map(|row| row["reward_mean"].as_f64()).collect();
    (of_set[0], of_set[of_set.len() - 1])
}

#[test]
#[ignore = "ten minutes, 20 GB of disk and the network"]
fn both_stages_learn_what_they_promise() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("quickstart");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sbatch/quickstart.sh");
    let output = Command::new("bash")
        .arg(script)
        .env("SLIME_BIN", Path::new(env!("CARGO_BIN_EXE_slime-stat")).parent().expect("a folder"))
        .env("SLIME_RUN_DIR", &run)
        .env("SLIME_WEIGHTS", dir.path().join("weights"))
        .env_remove("SLURM_SUBMIT_DIR")
        .output()
        .expect("bash is there");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("answers of set greedy"), "{text}");

    let first = stat(&run);
    assert_eq!(first["outcome"], "done");
    let (before, after) = rewards(&first);
    assert!(before < 0.4 && after >= 0.8, "reward {before} to {after}");
    for set in ["greedy", "held_out"] {
        let (before, after) = evaluations(&first, set);
        assert!(after > before, "{set} {before} to {after}");
    }
    let second = stat(&dir.path().join("quickstart-hundred"));
    let (before, after) = evaluations(&second, "greedy");
    assert!(second["outcome"] == "done" && after > before, "greedy {before} to {after}");
    for step in first["steps"].as_array().into_iter().chain(second["steps"].as_array()).flatten() {
        let mean = step["train/train_rollout_logprob_abs_diff"].as_f64();
        let largest = step["train/train_rollout_logprob_abs_diff_max"].as_f64();
        assert!(mean <= Some(1e-5) && largest <= Some(1e-3), "generation and training differ: {step}");
    }
}
