//! The JSON index: which bytes of which file hold which range of which tensor, and their checksums.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result, TensorInfo};

pub(crate) const FORMAT: &str = "slime-checkpoint";
pub(crate) const VERSION: u32 = 1;
/// Bytes per checksum: what a reader of a part of a shard has to read at least.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// A shard in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShardEntry {
    pub name: String,
    pub dataset: String,
    /// First element in the flat tensor, and how many.
    pub start: u64,
    pub len: u64,
    /// Where the contiguous dataset begins in the file, in bytes.
    pub offset: u64,
    /// xxh3 of each chunk, in hexadecimal.
    pub xxh3: Vec<String>,
}

/// One rank's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankEntry {
    pub file: String,
    pub bytes: u64,
    pub shards: Vec<ShardEntry>,
}

/// What a rank leaves beside its file for rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub token: String,
    pub rank: usize,
    pub world_size: usize,
    /// Why there is no file.
    pub failed: Option<String>,
    pub tensors: BTreeMap<String, TensorInfo>,
    pub entry: Option<RankEntry>,
}

/// The whole checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub format: String,
    pub version: u32,
    pub token: String,
    pub chunk_bytes: u64,
    pub meta: serde_json::Value,
    pub tensors: BTreeMap<String, TensorInfo>,
    pub ranks: Vec<RankEntry>,
}

impl Index {
    /// Joins the parts of all ranks, in rank order: they agree on every tensor and leave no element out.
    pub(crate) fn join(token: &str, meta: &serde_json::Value, parts: Vec<Part>) -> Result<Self> {
        let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
        let mut ranks = Vec::with_capacity(parts.len());
        for part in parts {
            for (name, info) in part.tensors {
                let known = tensors.entry(name.clone()).or_insert_with(|| info.clone());
                if *known != info {
                    let reason = format!("rank {} says {info:?}, a lower rank {known:?}", part.rank);
                    return Err(Error::Shard { name, reason });
                }
            }
            ranks.extend(part.entry);
        }
        let index = Self {
            format: FORMAT.into(),
            version: VERSION,
            token: token.into(),
            chunk_bytes: CHUNK_BYTES as u64,
            meta: meta.clone(),
            tensors,
            ranks,
        };
        index.check_coverage()?;
        Ok(index)
    }

    fn check_coverage(&self) -> Result<()> {
        let places = self.places();
        for (name, info) in &self.tensors {
            let mut next = 0;
            for (_, shard) in places.get(name.as_str()).into_iter().flatten() {
                if shard.start > next {
                    break;
                }
                next = next.max(shard.start + shard.len);
            }
            if next != info.num_elements() {
                let reason = format!("no rank has element {next} of {}", info.num_elements());
                return Err(Error::Shard { name: name.clone(), reason });
            }
        }
        Ok(())
    }

    /// The shards of every tensor with their rank, by first element.
    pub(crate) fn places(&self) -> BTreeMap<&str, Vec<(usize, &ShardEntry)>> {
        let mut places: BTreeMap<&str, Vec<(usize, &ShardEntry)>> = BTreeMap::new();
        for (rank, entry) in self.ranks.iter().enumerate() {
            for shard in &entry.shards {
                places.entry(&shard.name).or_default().push((rank, shard));
            }
        }
        for shards in places.values_mut() {
            shards.sort_by_key(|(rank, shard)| (shard.start, *rank));
        }
        places
    }

    /// Parses and checks `text`, the content of `path`.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        let wrong = |reason: String| Error::Index { path: path.to_path_buf(), reason };
        let index: Self = serde_json::from_slice(text).map_err(|e| wrong(e.to_string()))?;
        if index.format != FORMAT || index.version != VERSION || index.chunk_bytes != CHUNK_BYTES as u64 {
            let (format, version) = (&index.format, index.version);
            return Err(wrong(format!(
                "expected {FORMAT} version {VERSION}, got {format} version {version}"
            )));
        }
        Ok(index)
    }
}

/// The checksum as it is written in the index.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes))
}
