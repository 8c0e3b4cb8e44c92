//! The trainer's state as a checkpoint: every rank copies and writes what it holds of it, and reads what it shall hold.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use slime_checkpoint::{Checkpoint, Dtype, Shard, Snapshot, Writer};
use slime_cli::Failure;
use slime_comm::Communicator;
use slime_trainer::{Progress, StateReader, Trainer};

use crate::failure;

/// How long rank 0's writer waits for the slowest of the others to have written its file.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// What writes checkpoints beside training.
pub fn writer() -> Writer {
    Writer::new(PATIENCE)
}

/// A copy of what this rank holds of the state. `token` names this attempt.
///
/// # Errors
/// No room for the copy.
pub fn snapshot(trainer: &Trainer, comm: &dyn Communicator, token: u64) -> Result<Snapshot, Failure> {
    let (mut shards, mut reader) = (Vec::new(), StateReader::new(trainer));
    for buffer in trainer.buffers() {
        let (parts, bytes) = reader.saved(&buffer).map_err(failure!())?;
        shards.push(Shard { name: buffer.name, dtype: Dtype::F32, parts, bytes });
    }
    let Progress { optimizer_step, critic_step, num_rollouts } = trainer.progress();
    let meta = json!({
        "optimizer_step": optimizer_step,
        "critic_step": critic_step,
        "num_rollouts": num_rollouts,
        "lora": trainer.settings().train.lora,
        "fp8": trainer.settings().train.fp8,
    });
    Ok(Snapshot { rank: comm.rank(), world_size: comm.size(), token: token.to_string(), meta, shards })
}

/// Reads the state back, whatever number of ranks wrote it. Every rank calls it.
///
/// # Errors
/// The checkpoint is broken or belongs to another model.
pub fn load(dir: &Path, trainer: &mut Trainer) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(dir).map_err(failure!())?;
    let train = &trainer.settings().train;
    for (key, expected) in [("lora", json!(train.lora)), ("fp8", json!(train.fp8))] {
        let found = checkpoint.meta().get(key).cloned().unwrap_or_default();
        if found != expected {
            return Err(Failure::data(format!(
                "{}: expected train.{key} {expected}, it was trained with {found}",
                dir.display()
            )));
        }
    }
    for buffer in trainer.buffers() {
        let bytes = checkpoint.read_parts(&buffer.parts).map_err(failure!())?;
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        trainer.write_buffer(&buffer.name, &values).map_err(failure!())?;
    }
    let count = |key: &str| {
        let count = checkpoint.meta().get(key).and_then(serde_json::Value::as_u64);
        count.ok_or_else(|| Failure::data(format!("{}: index.json: no {key}", dir.display())))
    };
    let optimizer_step = count("optimizer_step")?;
    let (critic_step, num_rollouts) = (count("critic_step")?, count("num_rollouts")?);
    trainer.resume(Progress { optimizer_step, critic_step, num_rollouts }).map_err(failure!())
}
