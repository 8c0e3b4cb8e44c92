//! One rank's HDF5 file. The library lays the datasets out (contiguous, unfiltered, space allocated at once); the bytes
//! are then written with plain checked writes at the datasets' offsets, so a full disk is an ordinary error.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hdf5_metno::plist::dataset_create::{AllocTime, FillTime, Layout};
use hdf5_metno::types::VarLenUnicode;
use rustix::fs::{FallocateFlags, fallocate};

use crate::folder::sync_folder;
use crate::index::{CHUNK_BYTES, DatasetEntry, RankEntry, checksum};
use crate::{Dtype, Error, Result, Shard, Snapshot};

/// Datasets of at least this size begin at a multiple of it: the page and stripe unit of common file systems.
const ALIGNMENT: u64 = 4096;

/// `rank_00000.h5`.
pub(crate) fn file_name(rank: usize) -> String {
    format!("rank_{rank:05}.h5")
}

/// Writes, syncs and renames the file; a failure leaves nothing behind.
pub(crate) fn write(dir: &Path, snapshot: &Snapshot) -> Result<RankEntry> {
    let file = file_name(snapshot.rank);
    let temporary = Temporary(dir.join(format!(".tmp.{file}")));
    // Found out before the library starts, which would say it less clearly.
    let needed = stored(snapshot).map(|shard| (shard.bytes.len() as u64).next_multiple_of(ALIGNMENT)).sum();
    let probe = File::create(&temporary.0).map_err(Error::io("create", &temporary.0))?;
    reserve(&probe, needed).map_err(Error::io("reserve space for", &temporary.0))?;
    drop(probe);
    let offsets = lay_out(&temporary.0, snapshot).map_err(|e| Error::Hdf5 {
        path: temporary.0.clone(),
        message: e.to_string().lines().next().unwrap_or("unknown error").into(),
    })?;
    let data = OpenOptions::new().read(true).write(true).open(&temporary.0);
    let data = data.map_err(Error::io("open", &temporary.0))?;
    let mut len = data.metadata().map_err(Error::io("stat", &temporary.0))?.len();
    let shards: Vec<&Shard> = stored(snapshot).collect();
    for (shard, offset) in shards.iter().zip(&offsets) {
        len = len.max(offset + shard.bytes.len() as u64);
    }
    reserve(&data, len).map_err(Error::io("reserve space for", &temporary.0))?;
    let mut entries = Vec::with_capacity(shards.len());
    for (shard, offset) in shards.into_iter().zip(offsets) {
        entries.push(write_shard(&data, &temporary.0, shard, offset)?);
    }
    data.sync_all().map_err(Error::io("sync", &temporary.0))?;
    let path = dir.join(&file);
    std::fs::rename(&temporary.0, &path).map_err(Error::io("rename into", &path))?;
    sync_folder(dir)?;
    Ok(RankEntry { file, bytes: len, datasets: entries })
}

/// A shard without elements needs no dataset.
fn stored(snapshot: &Snapshot) -> impl Iterator<Item = &Shard> {
    snapshot.shards.iter().filter(|shard| !shard.bytes.is_empty())
}

/// Makes the file with all datasets and attributes; returns where each dataset's bytes belong.
fn lay_out(path: &Path, snapshot: &Snapshot) -> hdf5_metno::Result<Vec<u64>> {
    let file = hdf5_metno::File::with_options()
        .with_fapl(|p| p.alignment(ALIGNMENT, ALIGNMENT).libver_v110())
        .create(path)?;
    file.new_attr::<u64>().create("rank")?.write_scalar(&(snapshot.rank as u64))?;
    file.new_attr::<u64>().create("world_size")?.write_scalar(&(snapshot.world_size as u64))?;
    text_attribute(&file, "token", &snapshot.token)?;
    text_attribute(&file, "writer", concat!("slime ", env!("CARGO_PKG_VERSION")))?;
    let mut offsets = Vec::new();
    for shard in stored(snapshot) {
        let dataset = match shard.dtype {
            Dtype::F32 => create::<f32>(&file, shard),
            Dtype::F64 => create::<f64>(&file, shard),
            Dtype::Bf16 => create::<u16>(&file, shard),
            Dtype::U8 => create::<u8>(&file, shard),
            Dtype::U64 => create::<u64>(&file, shard),
            Dtype::I64 => create::<i64>(&file, shard),
        }?;
        text_attribute(&dataset, "dtype", shard.dtype.name())?;
        let parts = serde_json::to_string(&shard.parts).map_err(|e| e.to_string())?;
        text_attribute(&dataset, "parts", &parts)?;
        offsets.push(dataset.offset().ok_or("a dataset has no place in the file")?);
    }
    file.flush()?;
    file.close()?;
    Ok(offsets)
}

fn create<T: hdf5_metno::H5Type>(
    file: &hdf5_metno::File,
    shard: &Shard,
) -> hdf5_metno::Result<hdf5_metno::Dataset> {
    file.new_dataset::<T>()
        .shape(shard.bytes.len() / shard.dtype.size())
        .layout(Layout::Contiguous)
        .alloc_time(Some(AllocTime::Early))
        .fill_time(FillTime::Never)
        .create(shard.name.as_str())
}

fn text_attribute(on: &hdf5_metno::Location, name: &str, text: &str) -> hdf5_metno::Result<()> {
    let value: VarLenUnicode = text.parse().map_err(|e| format!("attribute {name}: {e:?}"))?;
    on.new_attr::<VarLenUnicode>().create(name)?.write_scalar(&value)
}

/// Finds out before the long write that the disk is full; file systems that cannot reserve say so and are let off.
fn reserve(file: &File, len: u64) -> std::io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len.max(1)) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) | Ok(()) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn write_shard(file: &File, path: &Path, shard: &Shard, offset: u64) -> Result<DatasetEntry> {
    let mut xxh3 = Vec::with_capacity(shard.bytes.len().div_ceil(CHUNK_BYTES));
    for (i, chunk) in shard.bytes.chunks(CHUNK_BYTES).enumerate() {
        let at = offset + (i * CHUNK_BYTES) as u64;
        file.write_all_at(chunk, at).map_err(Error::io("write", path))?;
        xxh3.push(checksum(chunk));
    }
    let (dataset, bytes, parts) = (shard.name.clone(), shard.bytes.len(), shard.parts.clone());
    Ok(DatasetEntry { dataset, offset, bytes, xxh3, parts })
}

/// A file that is removed unless it was renamed away.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Not there after the rename; and what cannot be removed has no COMPLETE beside it.
        let _ = std::fs::remove_file(&self.0);
    }
}
