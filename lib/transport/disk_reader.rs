//! Reads the weights of a version with `pread`, or mapped where they lie in memory, and verifies every chunk against its
//! publication.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use slime_record::{Publication, TensorChecksum};
use slime_weights::{TensorSpec, WeightDir};

use crate::digest::tensor_checksum;
use crate::{CHUNK_BYTES, Digest, Error, Result};

/// An opened version; file systems of clusters map badly, so tensors are read into memory of the caller.
#[derive(Debug)]
pub struct DiskReader {
    weights: WeightDir,
    files: BTreeMap<PathBuf, File>,
    /// Whether tensors are looked at where they lie instead of being read.
    is_mapped: bool,
    /// The published checksums by tensor; empty when only the hash of the whole was published.
    checksums: BTreeMap<String, Vec<u64>>,
    hash: u64,
}

impl DiskReader {
    /// Opens the weights of `publication` in `dir`.
    ///
    /// # Errors
    /// The directory is missing or broken, or holds other tensors than were published.
    pub fn open(dir: impl AsRef<Path>, publication: &Publication) -> Result<Self> {
        let weights = WeightDir::open_stored(dir)?;
        let mut files = BTreeMap::new();
        for path in weights.files() {
            let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
            files.insert(path.to_owned(), file);
        }
        let checksums = publication.tensors.iter().map(|t| (t.name.clone(), t.chunks.clone())).collect();
        let reader = Self { weights, files, is_mapped: false, checksums, hash: publication.hash };
        reader.check_tensors()?;
        Ok(reader)
    }

    /// The same of a directory that lies in memory: its tensors are not copied.
    ///
    /// # Errors
    /// As [`DiskReader::open`].
    pub fn open_mapped(dir: impl AsRef<Path>, publication: &Publication) -> Result<Self> {
        Ok(Self { is_mapped: true, ..Self::open(dir, publication)? })
    }

    /// The tensors of the version, in the order in which they lie in its files.
    ///
    /// # Errors
    /// Never for an opened version; the type says so for every lookup by name.
    pub fn tensors(&self) -> Result<Vec<TensorSpec>> {
        let spec = |name: &str| {
            let info = self.weights.info(name)?;
            Ok(TensorSpec { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone() })
        };
        let mut tensors: Vec<TensorSpec> = self.weights.names().map(spec).collect::<Result<_>>()?;
        tensors.sort_by_cached_key(|spec| {
            let place = self.weights.place(&spec.name).ok();
            place.map(|(path, range)| (path.to_owned(), range.start, range.end))
        });
        Ok(tensors)
    }

    /// The bytes of a tensor, verified.
    ///
    /// # Errors
    /// There is no such tensor, the disk refuses, or the bytes are not those that were published.
    pub fn tensor(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let bytes = self.read_any(name)?;
        self.check(tensor_checksum(name, &bytes))?;
        Ok(bytes)
    }

    /// Refuses a tensor that is not what was published.
    fn check(&self, found: TensorChecksum) -> Result<TensorChecksum> {
        let name = &found.name;
        if let Some(expected) = self.checksums.get(name) {
            let got = &found.chunks;
            if let Some(chunk) = (0..got.len()).find(|i| expected.get(*i) != Some(&got[*i])) {
                return Err(Error::Checksum {
                    path: self.weights.path().to_owned(),
                    tensor: name.to_owned(),
                    chunk,
                    expected: expected.get(chunk).copied().unwrap_or_default(),
                    got: got[chunk],
                });
            }
        }
        Ok(found)
    }

    fn read_any(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Ok(if self.is_mapped { self.weights.tensor(name)?.bytes } else { self.read(name)?.into() })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let (path, range) = self.weights.place(name)?;
        let mut bytes = vec![0; range.len()];
        let file = self.files.get(path).ok_or_else(|| Error::Read {
            path: path.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        file.read_exact_at(&mut bytes, range.start as u64)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Ok(bytes)
    }

    /// Reads everything and compares it with the publication.
    ///
    /// # Errors
    /// The disk refuses, or the first tensor by name that is not what was published.
    pub fn verify(&self) -> Result<Digest> {
        let names: Vec<&str> = self.weights.names().collect();
        let checksums: Vec<Result<_>> =
            names.par_iter().map(|name| Ok(tensor_checksum(name, &self.read_any(name)?))).collect();
        // The first by name that is broken, whichever was read first.
        let checksums = checksums.into_iter().map(|found| self.check(found?)).collect::<Result<_>>()?;
        let digest = Digest::new(checksums);
        if digest.hash == self.hash {
            return Ok(digest);
        }
        let path = self.weights.path().to_owned();
        Err(Error::Identity { path, expected: self.hash, got: digest.hash })
    }

    fn check_tensors(&self) -> Result<()> {
        let refuse = |tensor: &str, expected: String, got: String| {
            let path = self.weights.path().to_owned();
            Err(Error::Tensors { path, tensor: tensor.to_owned(), expected, got })
        };
        for (name, chunks) in &self.checksums {
            let num_chunks = self.weights.place(name)?.1.len().div_ceil(CHUNK_BYTES);
            if num_chunks != chunks.len() {
                return refuse(name, format!("{} chunks", chunks.len()), num_chunks.to_string());
            }
        }
        let extra = self.weights.names().find(|name| !self.checksums.contains_key(*name));
        match extra.filter(|_| !self.checksums.is_empty()) {
            Some(name) => refuse(name, "none".to_owned(), "one that was not published".to_owned()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskWriter;
    use slime_weights::Dtype;

    fn publish(dir: &Path) -> Publication {
        let spec = |name: &str, len| TensorSpec { name: name.into(), dtype: Dtype::U8, shape: vec![len] };
        let mut writer = DiskWriter::create(dir, vec![spec("b", CHUNK_BYTES + 5), spec("a", 3)]).unwrap();
        writer.write("b", &vec![9; CHUNK_BYTES + 5]).unwrap();
        writer.write("a", &[1, 2, 3]).unwrap();
        writer.finish().unwrap().publication(4, 2, "weights/000004.e002")
    }

    #[test]
    fn published_version_is_read_back() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("w");
        let publication = publish(&dir);
        let reader = DiskReader::open(&dir, &publication).unwrap();
        assert_eq!(*reader.tensor("a").unwrap(), [1, 2, 3]);
        assert_eq!(reader.verify().unwrap().hash, publication.hash);
        let mapped = DiskReader::open_mapped(&dir, &publication).unwrap();
        assert!(matches!(mapped.tensor("a").unwrap(), Cow::Borrowed([1, 2, 3])));
        assert_eq!(mapped.verify().unwrap().hash, publication.hash);
    }

    #[test]
    fn flipped_byte_names_its_tensor_and_chunk() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("w");
        let mut publication = publish(&dir);
        let file = dir.join("model.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        let last_of_b = bytes.len() - 4;
        bytes[last_of_b] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let reader = DiskReader::open(&dir, &publication).unwrap();
        assert!(reader.tensor("a").is_ok());
        let error = reader.verify().unwrap_err();
        assert!(error.to_string().contains("tensor b: chunk 1: expected checksum"), "{error}");
        assert_eq!(error.exit_code(), 65);
        publication.tensors.clear();
        let error = DiskReader::open(&dir, &publication).unwrap().verify().unwrap_err();
        assert!(matches!(error, Error::Identity { .. }), "{error}");
    }

    #[test]
    fn other_tensors_than_published_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("w");
        let mut publication = publish(&dir);
        let removed = publication.tensors.remove(0);
        let error = DiskReader::open(&dir, &publication).unwrap_err();
        assert!(error.to_string().contains("tensor a: expected none"), "{error}");
        publication.tensors.push(slime_record::TensorChecksum { name: "c".into(), ..removed });
        assert_eq!(DiskReader::open(&dir, &publication).unwrap_err().exit_code(), 65);
    }
}
