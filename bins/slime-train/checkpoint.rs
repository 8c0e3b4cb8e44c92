//! The trainer's state as a checkpoint: every rank writes its share of each buffer and reads all of them.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use slime_checkpoint::{Checkpoint, Dtype, Shard, Snapshot, TensorInfo};
use slime_cli::Failure;
use slime_comm::{Communicator, even_counts};
use slime_trainer::{Progress, Trainer};

use crate::failure;

/// How long ranks wait for the slowest of them to have written its file.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Writes this rank's file of the checkpoint in `dir`; returns when all ranks have. `token` names this attempt.
///
/// # Errors
/// The disk refuses, or another rank failed.
pub fn save(dir: &Path, trainer: &Trainer, comm: &dyn Communicator, token: u64) -> Result<(), Failure> {
    let mut shards = Vec::new();
    for (name, len) in trainer.buffers() {
        let values = trainer.read_buffer(&name).map_err(failure!())?;
        let counts = even_counts(len, comm.size());
        let start: usize = counts[..comm.rank()].iter().sum();
        let end = start + counts[comm.rank()];
        shards.push(Shard {
            name,
            tensor: TensorInfo { dtype: Dtype::F32, shape: vec![len as u64] },
            range: start as u64..end as u64,
            bytes: values[start..end].iter().flat_map(|value| value.to_le_bytes()).collect(),
        });
    }
    let Progress { optimizer_step, critic_step, num_rollouts } = trainer.progress();
    let meta = json!({
        "optimizer_step": optimizer_step,
        "critic_step": critic_step,
        "num_rollouts": num_rollouts,
    });
    let (rank, world_size) = (comm.rank(), comm.size());
    let snapshot = Snapshot { rank, world_size, token: token.to_string(), meta, shards };
    slime_checkpoint::write(dir, &snapshot, PATIENCE).map_err(failure!())
}

/// Reads the state back, whatever number of ranks wrote it.
///
/// # Errors
/// The checkpoint is broken or belongs to another model.
pub fn load(dir: &Path, trainer: &mut Trainer) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(dir).map_err(failure!())?;
    for (name, len) in trainer.buffers() {
        let bytes = checkpoint.read(&name, 0..len as u64).map_err(failure!())?;
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        trainer.write_buffer(&name, &values).map_err(failure!())?;
    }
    let count = |key: &str| {
        let count = checkpoint.meta().get(key).and_then(serde_json::Value::as_u64);
        count.ok_or_else(|| Failure::data(format!("{}: index.json: no {key}", dir.display())))
    };
    let optimizer_step = count("optimizer_step")?;
    let (critic_step, num_rollouts) = (count("critic_step")?, count("num_rollouts")?);
    trainer.set_progress(Progress { optimizer_step, critic_step, num_rollouts });
    Ok(())
}
