//! What an engine builds versions in: a weight directory of its own, in memory, that changes are applied to where they lie.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use slime_exchange::Physical;
use slime_record::Publication;
use slime_weights::{TensorSpec, checksum, header};

use super::changes_file::ChangesFile;
use crate::copy::each_side_file;
use crate::shm::room;
use crate::shm::segment::{NAME, Segment};
use crate::transport::place_of;
use crate::{CHUNK_BYTES, DiskReader, Error, Result};

/// Images of this process so far: each has a name of its own.
static NUM_IMAGES: AtomicU64 = AtomicU64::new(0);

/// A version as an engine holds it for the next one's changes; the directory goes with it.
#[derive(Debug)]
pub struct Image {
    dir: Directory,
    place: Physical,
    hash: u64,
    segment: Segment,
    head_bytes: usize,
    /// In the order in which they lie in the segment.
    tensors: Vec<Tensor>,
}

/// A directory that goes when nobody wants it any more. Its name is a temporary one: the next process that makes one beside
/// it takes what stays of a killed one.
#[derive(Debug)]
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
struct Tensor {
    spec: TensorSpec,
    /// Of its chunks.
    checksums: Vec<u64>,
}

impl Image {
    /// Copies the whole version that lies in `from` into `memory_dir`, every chunk of it verified. What killed processes left
    /// there goes first.
    ///
    /// # Errors
    /// There is no room, or what lies there is not what was published.
    pub fn create(memory_dir: &Path, from: &Path, publication: &Publication) -> Result<Self> {
        room::check_memory(memory_dir)?;
        let number = NUM_IMAGES.fetch_add(1, Ordering::Relaxed);
        let path = slime_cli::temporary_beside(&memory_dir.join(format!("slime-image-{number}")));
        room::check(memory_dir, room::num_bytes_of(from)?)?;
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Write { path, source }
        };
        fs::create_dir(&path).map_err(refused(&path))?;
        let dir = Directory(path);
        each_side_file(from, |name, bytes| {
            let path = dir.0.join(name);
            fs::write(&path, bytes).map_err(refused(&path))
        })?;
        let reader = DiskReader::open(from, publication)?;
        let specs = reader.tensors()?;
        let head = header(&specs);
        let num_bytes = head.len() + specs.iter().map(TensorSpec::num_bytes).sum::<usize>();
        let mut segment = Segment::create(&dir.0.join(NAME), num_bytes)?;
        segment.bytes()[..head.len()].copy_from_slice(&head);
        let mut published = by_name(publication);
        let tensors = specs.into_iter().map(|spec| {
            let checksums = published.remove(&*spec.name).unwrap_or_default().to_vec();
            Tensor { spec, checksums }
        });
        let tensors = tensors.collect();
        let (place, hash) = (place_of(publication), publication.hash);
        let mut image = Self { dir, place, hash, segment, head_bytes: head.len(), tensors };
        image.parts().into_par_iter().try_for_each(|(tensor, bytes)| {
            bytes.copy_from_slice(&reader.tensor(&tensor.spec.name)?);
            Ok::<(), Error>(())
        })?;
        Ok(image)
    }

    /// The weight directory.
    pub fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// Whether it is this version.
    pub fn is(&self, place: Physical, hash: u64) -> bool {
        self.place == place && self.hash == hash
    }

    /// Makes it the version of `publication`, whose changes are told against the one it is; every chunk is verified on the
    /// way. After an error it is neither.
    ///
    /// # Errors
    /// The changes are broken or of other tensors, or the result is not what was published.
    pub fn apply(&mut self, changes: &ChangesFile, publication: &Publication) -> Result<()> {
        let published = by_name(publication);
        let mine: BTreeMap<&str, usize> =
            self.tensors.iter().map(|tensor| (&*tensor.spec.name, tensor.checksums.len())).collect();
        let refuse = |tensor: &str, expected: &str, got: &str| Error::Tensors {
            path: changes.path().to_owned(),
            tensor: tensor.to_owned(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        };
        if let Some(other) =
            published.keys().copied().chain(changes.names()).find(|name| !mine.contains_key(name))
        {
            return Err(refuse(other, "a tensor of its base", "one that is not"));
        }
        let is_other = |(name, len): &(&&str, &usize)| published.get(**name).is_none_or(|c| c.len() != **len);
        if let Some((missing, _)) = mine.iter().find(is_other) {
            return Err(refuse(missing, "each tensor of its base", "none, or one of another size"));
        }
        self.parts().into_par_iter().try_for_each(|(tensor, bytes)| {
            let chunks = published.get(&*tensor.spec.name).copied().unwrap_or_default();
            tensor.apply(bytes, changes, chunks)
        })?;
        (self.place, self.hash) = (place_of(publication), publication.hash);
        Ok(())
    }

    /// The tensors and their bytes.
    fn parts(&mut self) -> Vec<(&mut Tensor, &mut [u8])> {
        let mut rest = &mut self.segment.bytes()[self.head_bytes..];
        let mut parts = Vec::with_capacity(self.tensors.len());
        for tensor in &mut self.tensors {
            let (bytes, behind) = rest.split_at_mut(tensor.spec.num_bytes());
            parts.push((tensor, bytes));
            rest = behind;
        }
        parts
    }
}

/// The published checksums of each tensor.
fn by_name(publication: &Publication) -> BTreeMap<&str, &[u64]> {
    publication.tensors.iter().map(|tensor| (&*tensor.name, &*tensor.chunks)).collect()
}

impl Tensor {
    /// Changes its `bytes` to what has the checksums `chunks`.
    fn apply(&mut self, bytes: &mut [u8], changes: &ChangesFile, chunks: &[u64]) -> Result<()> {
        let (name, width) = (&self.spec.name, self.spec.dtype.num_bytes());
        let other = |chunk: usize, got: u64| Error::Checksum {
            path: changes.path().to_owned(),
            tensor: name.clone(),
            chunk,
            expected: chunks[chunk],
            got,
        };
        let Some(mut told) = changes.changes(name, bytes.len() / width, width)? else {
            let differs = (0..chunks.len()).find(|chunk| self.checksums[*chunk] != chunks[*chunk]);
            return differs.map_or(Ok(()), |chunk| Err(other(chunk, self.checksums[chunk])));
        };
        for (chunk, bytes) in bytes.chunks_mut(CHUNK_BYTES).enumerate() {
            let first = chunk * CHUNK_BYTES / width;
            told.apply(first, bytes).map_err(|reason| changes.broken(name, reason))?;
            let got = checksum(bytes);
            if got != chunks[chunk] {
                return Err(other(chunk, got));
            }
            self.checksums[chunk] = got;
        }
        told.finish().map_err(|reason| changes.broken(name, reason))
    }
}
