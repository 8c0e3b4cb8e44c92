//! The writing of one checkpoint by all ranks: each leaves its file and its part of the index; rank 0 joins the parts.
//! Ranks meet in the folder only, so this runs beside training without a collective. COMPLETE is a step of its own:
//! in a run the trainer's state machine commits it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slime_config::TensorPart;
use slime_config::paths::COMPLETE;

use crate::folder::{sync_folder, write_file};
use crate::index::{Index, Part, checksum};
use crate::{Error, Result, Shard, Snapshot, TensorInfo, rank_file};

/// Between two looks for the parts of other ranks.
const POLL: Duration = Duration::from_millis(50);

/// Writes this rank's part of the checkpoint `dir`; on rank 0 also waits up to `patience` for the others and writes the
/// index. It is no checkpoint before a file COMPLETE holds its [`mark`]. On an error the rank's own file is gone and
/// rank 0 is told why.
pub fn write(dir: &Path, snapshot: &Snapshot, patience: Duration) -> Result<()> {
    if dir.join(COMPLETE).exists() {
        return Err(Error::Exists(dir.to_path_buf()));
    }
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    if let Some(root) = dir.parent().filter(|root| !root.as_os_str().is_empty()) {
        sync_folder(root)?;
    }
    let outcome = snapshot.shards.iter().try_for_each(Shard::check);
    let outcome = outcome.and_then(|()| rank_file::write(dir, snapshot));
    let tensors = tensors(snapshot);
    let (entry, error) = match outcome {
        Ok(entry) => (Some(entry), None),
        Err(e) => (None, Some(e)),
    };
    let part = Part {
        token: snapshot.token.clone(),
        rank: snapshot.rank,
        world_size: snapshot.world_size,
        failed: error.as_ref().map(ToString::to_string),
        tensors,
        entry,
    };
    let told = if snapshot.rank == 0 { Ok(()) } else { write_json(&part_path(dir, snapshot.rank), &part) };
    if let Some(error) = error {
        return Err(error);
    }
    told?;
    if snapshot.rank == 0 { finish(dir, snapshot, part, patience) } else { Ok(()) }
}

/// What this rank knows of tensors.
fn tensors(snapshot: &Snapshot) -> BTreeMap<String, TensorInfo> {
    let of_shard = |shard: &Shard| {
        let dtype = shard.dtype;
        let info = |part: &TensorPart| (part.tensor.clone(), TensorInfo { dtype, shape: part.shape.clone() });
        shard.parts.iter().map(info).collect::<Vec<_>>()
    };
    snapshot.shards.iter().flat_map(of_shard).collect()
}

/// Rank 0: joins the parts.
fn finish(dir: &Path, snapshot: &Snapshot, own: Part, patience: Duration) -> Result<()> {
    let mut parts = vec![own];
    let start = Instant::now();
    for rank in 1..snapshot.world_size {
        parts.push(await_part(dir, snapshot, rank, start, patience)?);
    }
    let index = Index::join(&snapshot.token, &snapshot.meta, parts)?;
    let path = dir.join("index.json");
    let text = serde_json::to_vec_pretty(&index)
        .map_err(|e| Error::Index { path: path.clone(), reason: e.to_string() })?;
    write_file(&path, &text)?;
    for rank in 1..snapshot.world_size {
        // The index holds all they say; one that stays does no harm.
        let _ = fs::remove_file(part_path(dir, rank));
    }
    Ok(())
}

/// What COMPLETE says of the written checkpoint `dir`: the checksum of its index.
pub fn mark(dir: &Path) -> Result<String> {
    let path = dir.join("index.json");
    Ok(checksum(&fs::read(&path).map_err(Error::io("read", &path))?))
}

/// Makes the written checkpoint `dir` a complete one, where no run has somebody to commit it.
pub fn complete(dir: &Path) -> Result<()> {
    write_file(&dir.join(COMPLETE), format!("{}\n", mark(dir)?).as_bytes())
}

fn await_part(
    dir: &Path,
    snapshot: &Snapshot,
    rank: usize,
    start: Instant,
    patience: Duration,
) -> Result<Part> {
    let path = part_path(dir, rank);
    loop {
        if let Some(part) = read_part(&path)?.filter(|part| part.token == snapshot.token) {
            if (part.rank, part.world_size) != (rank, snapshot.world_size) {
                let reason = format!(
                    "expected rank {rank} of {}, got rank {} of {}",
                    snapshot.world_size, part.rank, part.world_size
                );
                return Err(Error::Index { path, reason });
            }
            return match part.failed {
                Some(message) => Err(Error::Peer { rank, path: dir.to_path_buf(), message }),
                None => Ok(part),
            };
        }
        if start.elapsed() > patience {
            return Err(Error::Late { rank, path: dir.to_path_buf(), waited_s: patience.as_secs() });
        }
        std::thread::sleep(POLL);
    }
}

fn read_part(path: &Path) -> Result<Option<Part>> {
    let text = match fs::read(path) {
        // A name that is late to appear, or was replaced while it was opened on NFS.
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::StaleNetworkFileHandle
            ) =>
        {
            return Ok(None);
        }
        other => other.map_err(Error::io("read", path))?,
    };
    let part = serde_json::from_slice(&text);
    part.map(Some).map_err(|e| Error::Index { path: path.to_path_buf(), reason: e.to_string() })
}

fn part_path(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("rank_{rank:05}.json"))
}

fn write_json(path: &Path, part: &Part) -> Result<()> {
    let text = serde_json::to_vec(part)
        .map_err(|e| Error::Index { path: path.to_path_buf(), reason: e.to_string() })?;
    write_file(path, &text)
}
