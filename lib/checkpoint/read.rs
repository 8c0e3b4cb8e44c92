//! Reading a complete checkpoint, by any number of ranks: ranges of tensors, assembled from the files that hold them,
//! every byte checked against its checksum.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slime_config::paths::COMPLETE;

use crate::index::{CHUNK_BYTES, Index, ShardEntry, checksum};
use crate::{Error, Result, TensorInfo};

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    index: Index,
    files: Vec<File>,
}

impl Checkpoint {
    /// Opens `dir`: COMPLETE is there, the index is the one it names, all files have their size.
    pub fn open(dir: &Path) -> Result<Self> {
        let expected = match fs::read_to_string(dir.join(COMPLETE)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::Incomplete(dir.to_path_buf()));
            }
            other => other.map_err(Error::io("read", &dir.join(COMPLETE)))?,
        };
        let path = dir.join("index.json");
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        let (expected, got) = (expected.trim().to_string(), checksum(&text));
        if expected != got {
            return Err(Error::Checksum { path, what: "the file".into(), expected, got });
        }
        let index = Index::parse(&path, &text)?;
        let mut files = Vec::with_capacity(index.ranks.len());
        for rank in &index.ranks {
            let path = dir.join(&rank.file);
            let file = File::open(&path).map_err(Error::io("open", &path))?;
            let got = file.metadata().map_err(Error::io("stat", &path))?.len();
            if got != rank.bytes {
                return Err(Error::Size { path, expected: rank.bytes, got });
            }
            files.push(file);
        }
        Ok(Self { dir: dir.to_path_buf(), index, files })
    }

    /// Rank 0's small state.
    pub fn meta(&self) -> &serde_json::Value {
        &self.index.meta
    }

    /// Ranks that wrote it.
    pub fn world_size(&self) -> usize {
        self.index.ranks.len()
    }

    /// The files of the ranks, in rank order: name, size in bytes, and how many ranges of tensors they hold.
    pub fn rank_files(&self) -> impl Iterator<Item = (&str, u64, usize)> {
        self.index.ranks.iter().map(|rank| (rank.file.as_str(), rank.bytes, rank.shards.len()))
    }

    /// Names and descriptions of all tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.index.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// Description of one tensor.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        let missing = || Error::NoTensor { path: self.dir.clone(), name: name.into() };
        self.index.tensors.get(name).ok_or_else(missing)
    }

    /// The elements `range` of the flat tensor `name`, as bytes.
    pub fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let len = range.end.saturating_sub(range.start) as usize * self.tensor(name)?.dtype.size();
        let mut bytes = vec![0; len];
        self.read_into(name, range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `out` with the elements from `start` on.
    pub fn read_into(&self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        let info = self.tensor(name)?;
        let size = info.dtype.size();
        let end = start + (out.len() / size) as u64;
        let wrong = |reason: String| Err(Error::Shard { name: name.into(), reason });
        if !out.len().is_multiple_of(size) || end > info.num_elements() {
            let (total, len) = (info.num_elements(), out.len());
            return wrong(format!("expected a range within 0..{total}, got {start}..{end} in {len} bytes"));
        }
        let places = self.index.places();
        let mut next = start;
        for &(rank, shard) in places.get(name).into_iter().flatten() {
            let shard_end = shard.start + shard.len;
            if shard.start > next || shard_end <= next || next == end {
                continue;
            }
            let until = shard_end.min(end);
            let bytes = |elements: u64| elements as usize * size;
            let part = &mut out[bytes(next - start)..bytes(until - start)];
            self.read_shard(rank, shard, bytes(next - shard.start), bytes(shard.len), part)?;
            next = until;
        }
        if next < end {
            return wrong(format!("element {next} is in no file of {}", self.dir.display()));
        }
        Ok(())
    }

    /// Fills `out` from byte `from` of a shard of `total` bytes: whole chunks straight, cut ones by a copy.
    fn read_shard(
        &self,
        rank: usize,
        shard: &ShardEntry,
        from: usize,
        total: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let end = from + out.len();
        let mut scratch = Vec::new();
        for number in from / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES) {
            let chunk = number * CHUNK_BYTES..total.min((number + 1) * CHUNK_BYTES);
            let wanted = from.max(chunk.start)..end.min(chunk.end);
            let target = &mut out[wanted.start - from..wanted.end - from];
            if wanted == chunk {
                self.read_chunk(rank, shard, number, target)?;
            } else {
                scratch.resize(chunk.len(), 0);
                self.read_chunk(rank, shard, number, &mut scratch)?;
                target.copy_from_slice(&scratch[wanted.start - chunk.start..wanted.end - chunk.start]);
            }
        }
        Ok(())
    }

    fn read_chunk(&self, rank: usize, shard: &ShardEntry, number: usize, out: &mut [u8]) -> Result<()> {
        let path = || self.dir.join(&self.index.ranks[rank].file);
        let at = shard.offset + (number * CHUNK_BYTES) as u64;
        self.files[rank].read_exact_at(out, at).map_err(|e| Error::io("read", &path())(e))?;
        let got = checksum(out);
        let expected = shard.xxh3.get(number).cloned().unwrap_or_default();
        if got != expected {
            let what = format!("tensor {} at byte {at}", shard.name);
            return Err(Error::Checksum { path: path(), what, expected, got });
        }
        Ok(())
    }
}
