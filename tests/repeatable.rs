//! Under `train.deterministic` a run gives the same bits as another, also one that was resumed from a checkpoint: on one rank, and
//! with data and tensors shared out over ranks of MPI.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixtures/launcher.rs"]
mod launcher;
#[path = "fixtures/tiny_weights.rs"]
#[allow(dead_code, reason = "the model is named here")]
mod tiny_weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

const TRAIN: &str = env!("CARGO_BIN_EXE_slime-train");
const ROLLOUT: &str = env!("CARGO_BIN_EXE_slime-rollout");

/// Four steps of supervised training with a checkpoint every two.
fn run_dir(dir: &TempDir, name: &str, tp: u32) -> PathBuf {
    let run = dir.path().join(name);
    fs::create_dir_all(run.join("control")).unwrap();
    let text = format!(
        "[run]\nnum_steps = 4\n[model]\npath = \"{0}/weights\"\n[data]\nkind = \"conversations\"\n\
         prompts = \"{0}/rows.jsonl\"\napply_chat_template = false\n[rollout]\nrollout_batch_size = 8\n\
         [train]\nlr = 1e-3\nmax_tokens_per_gpu = 32\ndeterministic = true\n[algorithm]\nloss = \"sft\"\n\
         [checkpoint]\ninterval = 2\n[parallel]\ntp = {tp}\n",
        dir.path().display()
    );
    fs::write(run.join("run.toml"), text).unwrap();
    run
}

/// A trainer of `ranks` ranks; none where there is no launcher.
fn trainer(ranks: usize, run: &Path, more: &[&str]) -> Option<Command> {
    let mut command = match ranks {
        1 => Command::new(TRAIN),
        ranks => {
            let mut command = launcher::mpirun(ranks)?;
            command.arg(TRAIN);
            command
        }
    };
    command.env("OMP_NUM_THREADS", "1").arg("--follow").arg(run).args(more);
    Some(command)
}

/// Runs to the end, and gives the bytes of the last version's weights, of this epoch.
fn last_weights(run: &Path, ranks: usize, more: &[&str], epoch: u32) -> Option<Vec<u8>> {
    let mut trainer = trainer(ranks, run, more)?;
    let rollout = Command::new(ROLLOUT).arg("--follow").arg(run).stderr(Stdio::null()).spawn();
    let output = trainer.output().unwrap();
    let mut rollout = rollout.unwrap();
    let _ = (rollout.kill(), rollout.wait());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(fs::read(run.join(format!("weights/000004.e{epoch:03}/model.safetensors"))).unwrap())
}

#[test]
fn runs_and_resumed_runs_have_the_same_bits() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("weights")).unwrap();
    tiny_weights::write_model(&dir.path().join("weights"), "glm4_moe");
    let row =
        |i: u32| json!({"prompt": format!("{} 5 {}", i % 9, i % 7), "completion": format!("{} 3", i % 5)});
    let rows: String = (0..32).map(|i| row(i).to_string() + "\n").collect();
    fs::write(dir.path().join("rows.jsonl"), rows).unwrap();
    for (ranks, tp) in [(1, 1), (2, 1), (2, 2)] {
        let run = |name: &str| run_dir(&dir, &format!("{name}-{ranks}-{tp}"), tp);
        let first = run("first");
        let Some(expected) = last_weights(&first, ranks, &[], 1) else { return };
        assert!(last_weights(&run("second"), ranks, &[], 1).unwrap() == expected, "{ranks} ranks, tp {tp}");
        let resumed = last_weights(&first, ranks, &["--resume", "2"], 2).unwrap();
        assert!(resumed == expected, "resumed, {ranks} ranks, tp {tp}");
    }
}
