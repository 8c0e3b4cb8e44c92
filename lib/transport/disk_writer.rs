//! Writes the weights of a version to disk and takes their checksums on the way.

use std::path::Path;

use slime_record::TensorChecksum;
use slime_weights::{MAX_SHARD_BYTES, TensorSpec, WeightWriter, checksum};

use crate::{CHUNK_BYTES, Digest, Result};

/// A version in the making; nothing is visible before `finish`.
#[derive(Debug)]
pub struct DiskWriter {
    writer: WeightWriter,
    checksums: Vec<TensorChecksum>,
}

impl DiskWriter {
    /// Begins the weight directory `dir` that will hold `tensors`, written in this order.
    ///
    /// # Errors
    /// The directory holds something already or cannot be made.
    pub fn create(dir: impl AsRef<Path>, tensors: Vec<TensorSpec>) -> Result<Self> {
        let checksums = Vec::with_capacity(tensors.len());
        let writer = WeightWriter::create(dir, tensors, MAX_SHARD_BYTES)?.without_hashes();
        Ok(Self { writer, checksums })
    }

    /// Writes the next tensor; its little-endian, row-major elements.
    ///
    /// # Errors
    /// It is not the next one, has another size than announced, or the disk refuses.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.writer.expect(name, bytes.len())?;
        let mut chunks = Vec::with_capacity(bytes.len().div_ceil(CHUNK_BYTES));
        if bytes.is_empty() {
            self.writer.write_part(name, bytes)?;
        }
        for chunk in bytes.chunks(CHUNK_BYTES) {
            // The checksum takes another core's time, not the disk's.
            let (checksum, written) = rayon::join(|| checksum(chunk), || self.writer.write_part(name, chunk));
            written?;
            chunks.push(checksum);
        }
        self.checksums.push(TensorChecksum { name: name.to_owned(), chunks });
        Ok(())
    }

    /// Adds a file beside the weights, such as `config.json`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn add_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        Ok(self.writer.add_file(name, bytes)?)
    }

    /// What identifies the weights that were written so far.
    pub fn digest(&self) -> Digest {
        Digest::new(self.checksums.clone())
    }

    /// Syncs everything, gives the directory its name, and returns what identifies the weights.
    ///
    /// # Errors
    /// A tensor was not written, or the disk refuses.
    pub fn finish(self) -> Result<Digest> {
        let digest = self.digest();
        self.writer.finish()?;
        Ok(digest)
    }
}
