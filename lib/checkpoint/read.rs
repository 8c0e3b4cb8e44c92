//! Reading a complete checkpoint, by any number of ranks: parts of tensors, assembled from the files that hold them, every
//! byte checked against its checksum.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slime_config::paths::COMPLETE;
use slime_config::{ElementRun as Run, TensorPart};

use crate::index::{CHUNK_BYTES, DatasetEntry, Index, Place, checksum};
use crate::{Error, Result, TensorInfo};

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    index: Index,
    files: Vec<File>,
    places: BTreeMap<String, Vec<Place>>,
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
        let places = index.places();
        Ok(Self { dir: dir.to_path_buf(), index, files, places })
    }

    /// Rank 0's small state.
    pub fn meta(&self) -> &serde_json::Value {
        &self.index.meta
    }

    /// Ranks that wrote it.
    pub fn world_size(&self) -> usize {
        self.index.ranks.len()
    }

    /// The files of the ranks, in rank order: name, size in bytes, and how many datasets they hold.
    pub fn rank_files(&self) -> impl Iterator<Item = (&str, u64, usize)> {
        self.index.ranks.iter().map(|rank| (rank.file.as_str(), rank.bytes, rank.datasets.len()))
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
    pub fn read(&self, name: &str, range: Range<usize>) -> Result<Vec<u8>> {
        let whole = TensorPart::whole(name, &self.tensor(name)?.shape);
        self.read_parts(&[TensorPart { range, ..whole }])
    }

    /// The elements of `parts`, one behind the other, as bytes: however the ranks that wrote them had divided the tensors.
    pub fn read_parts(&self, parts: &[TensorPart]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in parts {
            let info = self.tensor(&part.tensor)?;
            let wrong = |reason: String| Err(Error::Shard { name: part.tensor.clone(), reason });
            if part.shape != info.shape {
                return wrong(format!(
                    "expected shape {:?}, the checkpoint has {:?}",
                    part.shape, info.shape
                ));
            }
            let (total, range) = (part.bounds.num_elements(), &part.range);
            if range.start > range.end || range.end > total {
                return wrong(format!("expected a range within 0..{total}, got {range:?}"));
            }
            let start = bytes.len();
            bytes.resize(start + part.len() * info.dtype.size(), 0);
            self.read_part(part, info.dtype.size(), &mut bytes[start..])?;
        }
        Ok(bytes)
    }

    /// Fills `out` with `part`, of elements of `size` bytes.
    fn read_part(&self, part: &TensorPart, size: usize, out: &mut [u8]) -> Result<()> {
        let mut num_read = 0;
        for place in self.places.get(&part.tensor).into_iter().flatten() {
            let runs = self.index.part(place).runs(part);
            num_read += runs.iter().map(|run| run.len).sum::<usize>();
            self.read_runs(place, size, &runs, out)?;
        }
        if num_read != part.len() {
            let reason = format!("{num_read} of {} elements are in {}", part.len(), self.dir.display());
            return Err(Error::Shard { name: part.tensor.clone(), reason });
        }
        Ok(())
    }

    /// Copies runs of a stored part, which rise, into `out`; every chunk that they touch is read and checked once.
    fn read_runs(&self, place: &Place, size: usize, runs: &[Run], out: &mut [u8]) -> Result<()> {
        let (mut chunk, mut number) = (Vec::new(), usize::MAX);
        for run in runs {
            let (mut at, end) = ((place.first + run.from) * size, (place.first + run.from + run.len) * size);
            let mut to = run.to * size;
            while at < end {
                if number != at / CHUNK_BYTES {
                    number = at / CHUNK_BYTES;
                    self.read_chunk(place, number, &mut chunk)?;
                }
                let within = at % CHUNK_BYTES;
                let len = (end - at).min(CHUNK_BYTES - within);
                out[to..to + len].copy_from_slice(&chunk[within..within + len]);
                (at, to) = (at + len, to + len);
            }
        }
        Ok(())
    }

    fn read_chunk(&self, place: &Place, number: usize, chunk: &mut Vec<u8>) -> Result<()> {
        let DatasetEntry { offset, bytes, xxh3, dataset, .. } = self.index.dataset(place);
        let path = || self.dir.join(&self.index.ranks[place.rank].file);
        let at = offset + (number * CHUNK_BYTES) as u64;
        chunk.resize(CHUNK_BYTES.min(bytes.saturating_sub(number * CHUNK_BYTES)), 0);
        self.files[place.rank].read_exact_at(chunk, at).map_err(|e| Error::io("read", &path())(e))?;
        let got = checksum(chunk);
        let expected = xxh3.get(number).cloned().unwrap_or_default();
        if got != expected || chunk.is_empty() {
            let what = format!("dataset {dataset} at byte {at}");
            return Err(Error::Checksum { path: path(), what, expected, got });
        }
        Ok(())
    }
}
