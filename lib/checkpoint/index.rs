//! The JSON index: which bytes of which file hold which part of which tensor, and their checksums.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use slime_config::{TensorBox, TensorPart};

use crate::{Error, Result, TensorInfo};

pub(crate) const FORMAT: &str = "slime-checkpoint";
pub(crate) const VERSION: u32 = 2;
/// Bytes per checksum: what a reader of a part of a dataset has to read at least.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// A dataset in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DatasetEntry {
    pub dataset: String,
    /// Where the contiguous dataset begins in the file, in bytes.
    pub offset: u64,
    /// Its size.
    pub bytes: usize,
    /// xxh3 of each chunk, in hexadecimal.
    pub xxh3: Vec<String>,
    /// What its elements are, one behind the other.
    pub parts: Vec<TensorPart>,
}

/// One rank's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankEntry {
    pub file: String,
    pub bytes: u64,
    pub datasets: Vec<DatasetEntry>,
}

/// Where a part of a tensor is: the numbers of rank, dataset and part, and the part's first element in the dataset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub rank: usize,
    dataset: usize,
    part: usize,
    pub first: usize,
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

    /// The boxes of a tensor lie apart and make it up; so do the ranges of each box. Copies of one part count once.
    fn check_coverage(&self) -> Result<()> {
        let mut places = self.places();
        for (name, info) in &self.tensors {
            let wrong = |reason: String| Err(Error::Shard { name: name.clone(), reason });
            let mut boxes: BTreeMap<&TensorBox, Vec<Range<usize>>> = BTreeMap::new();
            for place in places.remove(name).unwrap_or_default() {
                let part = self.part(&place);
                boxes.entry(&part.bounds).or_default().push(part.range.clone());
            }
            for (bounds, ranges) in &mut boxes {
                ranges.sort_by_key(|range| (range.start, range.end));
                let covered = ranges
                    .iter()
                    .fold(0, |next, range| if range.start > next { next } else { next.max(range.end) });
                let total = bounds.num_elements();
                if covered != total {
                    let of = if total == info.num_elements() {
                        String::new()
                    } else {
                        format!(" of the box of shape {:?} at {:?}", bounds.shape, bounds.start)
                    };
                    return wrong(format!("no rank has element {covered} of {total}{of}"));
                }
            }
            let boxes: Vec<&TensorBox> = boxes.into_keys().collect();
            let meet =
                |(at, one): (usize, &&TensorBox)| boxes[at + 1..].iter().any(|o| one.intersect(o).is_some());
            let num_held: usize = boxes.iter().map(|bounds| bounds.num_elements()).sum();
            if num_held != info.num_elements() || boxes.iter().enumerate().any(meet) {
                return wrong(format!(
                    "expected boxes that make up {:?} and lie apart, got {boxes:?}",
                    info.shape
                ));
            }
        }
        Ok(())
    }

    /// The parts of every tensor, each once.
    pub(crate) fn places(&self) -> BTreeMap<String, Vec<Place>> {
        let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for (rank, entry) in self.ranks.iter().enumerate() {
            for (dataset, DatasetEntry { parts, .. }) in entry.datasets.iter().enumerate() {
                let mut first = 0;
                for (at, part) in parts.iter().enumerate() {
                    let known = places.entry(part.tensor.clone()).or_default();
                    if !known.iter().any(|place| self.part(place) == part) {
                        known.push(Place { rank, dataset, part: at, first });
                    }
                    first += part.len();
                }
            }
        }
        places
    }

    pub(crate) fn dataset(&self, place: &Place) -> &DatasetEntry {
        &self.ranks[place.rank].datasets[place.dataset]
    }

    pub(crate) fn part(&self, place: &Place) -> &TensorPart {
        &self.dataset(place).parts[place.part]
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
