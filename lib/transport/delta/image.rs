//! What an engine builds versions in: a weight directory of its own, in memory, that changes are applied to.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use slime_exchange::Physical;
use slime_record::Publication;
use slime_weights::{WeightDir, checksum};

use super::changes_file::ChangesFile;
use crate::shm::room;
use crate::transport::place_of;
use crate::{CHUNK_BYTES, Error, Result, copy};

/// Images of this process so far: each has a name of its own.
static NUM_IMAGES: AtomicU64 = AtomicU64::new(0);

/// A version as an engine holds it for the next one's changes; the directory goes with it.
#[derive(Debug)]
pub struct Image {
    dir: PathBuf,
    place: Physical,
    hash: u64,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Debug)]
struct Tensor {
    path: PathBuf,
    range: Range<usize>,
    width: usize,
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
        let number = NUM_IMAGES.fetch_add(1, Ordering::Relaxed);
        let dir = slime_cli::temporary_beside(&memory_dir.join(format!("slime-image-{number}")));
        room::check(memory_dir, room::num_bytes_of(from)?)?;
        copy(from, publication, &dir)?;
        let mut image =
            Self { dir, place: place_of(publication), hash: publication.hash, tensors: BTreeMap::new() };
        let weights = WeightDir::open_stored(&image.dir)?;
        for published in &publication.tensors {
            let (path, range) = weights.place(&published.name)?;
            let width = weights.info(&published.name)?.dtype.num_bytes();
            let tensor = Tensor { path: path.to_owned(), range, width, checksums: published.chunks.clone() };
            image.tensors.insert(published.name.clone(), tensor);
        }
        Ok(image)
    }

    /// The weight directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is this version.
    pub fn is(&self, place: Physical, hash: u64) -> bool {
        self.place == place && self.hash == hash
    }

    /// Makes it the version of `publication`, whose changes are told against the one it is; every chunk is verified on the
    /// way. After an error it is neither.
    ///
    /// # Errors
    /// The changes are broken or of other tensors, the result is not what was published, or the memory refuses.
    pub fn apply(&mut self, changes: &ChangesFile, publication: &Publication) -> Result<()> {
        let published: BTreeMap<&str, &[u64]> =
            publication.tensors.iter().map(|tensor| (&*tensor.name, &*tensor.chunks)).collect();
        let others = published.keys().copied().chain(changes.names());
        if let Some(other) = others.into_iter().find(|name| !self.tensors.contains_key(*name)) {
            return Err(Error::Tensors {
                path: changes.path().to_owned(),
                tensor: other.to_owned(),
                expected: "a tensor of its base".to_owned(),
                got: "one that is not".to_owned(),
            });
        }
        let apply = |buffer: &mut Vec<u8>, (name, tensor): (&String, &mut Tensor)| {
            let chunks = published.get(name.as_str()).filter(|c| c.len() == tensor.checksums.len());
            let chunks = chunks.ok_or_else(|| Error::Tensors {
                path: changes.path().to_owned(),
                tensor: name.clone(),
                expected: "each tensor of its base".to_owned(),
                got: "none, or one of another size".to_owned(),
            })?;
            tensor.apply(name, changes, chunks, buffer)
        };
        self.tensors.par_iter_mut().try_for_each_init(Vec::new, apply)?;
        (self.place, self.hash) = (place_of(publication), publication.hash);
        Ok(())
    }
}

impl Tensor {
    /// Changes the tensor to what has the checksums `chunks`.
    fn apply(
        &mut self,
        name: &str,
        changes: &ChangesFile,
        chunks: &[u64],
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let num_elements = self.range.len() / self.width;
        let Some(mut told) = changes.changes(name, num_elements, self.width)? else {
            return match (0..chunks.len()).find(|chunk| self.checksums[*chunk] != chunks[*chunk]) {
                Some(chunk) => Err(other_bytes(name, changes, chunk, chunks[chunk], self.checksums[chunk])),
                None => Ok(()),
            };
        };
        let file = self.open()?;
        for (chunk, expected) in chunks.iter().enumerate() {
            let start = chunk * CHUNK_BYTES;
            buffer.resize(CHUNK_BYTES.min(self.range.len() - start), 0);
            let offset = (self.range.start + start) as u64;
            file.read_exact_at(buffer, offset).map_err(|source| self.refused(source))?;
            told.apply(start / self.width, buffer).map_err(|reason| changes.broken(name, reason))?;
            let got = checksum(buffer);
            if got != *expected {
                return Err(other_bytes(name, changes, chunk, *expected, got));
            }
            if got != self.checksums[chunk] {
                file.write_all_at(buffer, offset).map_err(|source| self.refused(source))?;
                self.checksums[chunk] = got;
            }
        }
        told.finish().map_err(|reason| changes.broken(name, reason))
    }

    fn open(&self) -> Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.path).map_err(|source| self.refused(source))
    }

    fn refused(&self, source: std::io::Error) -> Error {
        Error::Read { path: self.path.clone(), source }
    }
}

/// The error of a chunk that does not become what was published.
fn other_bytes(name: &str, changes: &ChangesFile, chunk: usize, expected: u64, got: u64) -> Error {
    let (path, tensor) = (changes.path().to_owned(), name.to_owned());
    Error::Checksum { path, tensor, chunk, expected, got }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Its name is a temporary one: the next process that makes one here takes what stays.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
