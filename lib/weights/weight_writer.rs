//! Writes a weight directory under a temporary name, syncs it and renames it into place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::shard_file::{Pending, ShardFile};
use crate::{Dtype, Error, FileRange, Result, safetensors};

/// The usual size of a shard in the Hugging Face layout, in bytes.
pub const MAX_SHARD_BYTES: usize = 5_000_000_000;

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The Hugging Face name.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of the tensor.
    pub fn num_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.num_bytes()
    }
}

/// XXH3 (64 bits) of some bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of a tensor as people see it: 16 hexadecimal digits.
pub fn tensor_hash(bytes: &[u8]) -> String {
    format!("{:016x}", checksum(bytes))
}

/// A weight directory in the making; dropped without `finish`, it leaves nothing behind.
///
/// Several processes may write one directory together: one creates it, the others [`WeightWriter::join`], each writes whole
/// shards after [`WeightWriter::begin_shard`], and the one that created it adopts the shards of the others and finishes.
#[derive(Debug)]
pub struct WeightWriter {
    target: PathBuf,
    temporary: PathBuf,
    tensors: Vec<TensorSpec>,
    /// Index of the first tensor of each shard.
    shard_starts: Vec<usize>,
    file: Option<ShardFile>,
    /// Files that are written and on their way to the disk.
    syncing: Vec<Pending>,
    /// The tensor that is written next, the bytes of it that are there, and their checksum so far.
    next: usize,
    filled: usize,
    hash: Option<RunningHash>,
    /// The tensors that are not written yet.
    missing: BTreeSet<usize>,
    hashes: BTreeMap<String, String>,
    /// Whether the temporary directory goes with this writer.
    is_owner: bool,
}

/// A checksum in the making.
struct RunningHash(Xxh3Default);

impl std::fmt::Debug for RunningHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunningHash({:016x})", self.0.digest())
    }
}

impl WeightWriter {
    /// Begins a directory at `target` that will hold `tensors`, written in this order, in files of at most
    /// `max_shard_bytes` (a larger tensor has a file of its own).
    ///
    /// # Errors
    /// The target holds something already, or the temporary directory beside it cannot be made.
    pub fn create(
        target: impl AsRef<Path>,
        tensors: Vec<TensorSpec>,
        max_shard_bytes: usize,
    ) -> Result<Self> {
        let (target, temporary) = begin(target.as_ref())?;
        let mut writer = Self::join(target, temporary, tensors, max_shard_bytes);
        writer.is_owner = true;
        Ok(writer)
    }

    /// Takes part in a directory that another process has begun: `temporary` is its [`WeightWriter::temporary`].
    pub fn join(
        target: impl Into<PathBuf>,
        temporary: impl Into<PathBuf>,
        tensors: Vec<TensorSpec>,
        max_shard_bytes: usize,
    ) -> Self {
        Self {
            target: target.into(),
            temporary: temporary.into(),
            shard_starts: shard_starts(&tensors, max_shard_bytes),
            missing: (0..tensors.len()).collect(),
            tensors,
            file: None,
            syncing: Vec::new(),
            next: 0,
            filled: 0,
            hash: Some(RunningHash(Xxh3Default::new())),
            hashes: BTreeMap::new(),
            is_owner: false,
        }
    }

    /// The same writer for a caller that takes checksums of its own: `finish` returns none.
    #[must_use]
    pub fn without_hashes(mut self) -> Self {
        self.hash = None;
        self
    }

    /// Checks that a directory could begin at `target`, for tools that compute for hours before they write it.
    ///
    /// # Errors
    /// As [`WeightWriter::create`].
    pub fn check_target(target: impl AsRef<Path>) -> Result<()> {
        let (target, temporary) = begin(target.as_ref())?;
        fs::remove_dir(temporary).map_err(Error::write(&target))
    }

    /// Where the files lie until the directory is whole.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// How many files the weights have.
    pub fn num_shards(&self) -> usize {
        self.shard_starts.len()
    }

    /// The tensors of a file, by their places among all.
    pub fn shard(&self, shard: usize) -> Range<usize> {
        self.shard_starts[shard]..self.shard_starts.get(shard + 1).copied().unwrap_or(self.tensors.len())
    }

    /// The next tensors are those of this file.
    pub fn begin_shard(&mut self, shard: usize) {
        (self.next, self.filled) = (self.shard_starts[shard], 0);
    }

    /// Takes note of a file that another process has written.
    ///
    /// # Errors
    /// It is not there, or not whole.
    pub fn adopt_shard(&mut self, shard: usize) -> Result<()> {
        let (range, path) = (self.shard(shard), self.temporary.join(self.shard_name(shard)));
        let expected = (self.header(shard).len()
            + self.tensors[range.clone()].iter().map(TensorSpec::num_bytes).sum::<usize>())
            as u64;
        let got = fs::metadata(&path).map_err(Error::write(&path))?.len();
        if got != expected {
            return Err(Error::Truncated { path, what: "its tensors".to_owned(), expected, got });
        }
        range.for_each(|tensor| _ = self.missing.remove(&tensor));
        Ok(())
    }

    /// Writes the next tensor; its little-endian, row-major elements.
    ///
    /// # Errors
    /// It is not the next one, has another size than announced, or the disk refuses.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.expect(name, bytes.len())?;
        self.write_part(name, bytes)
    }

    /// Checks that a tensor of `num_bytes` is the next one.
    ///
    /// # Errors
    /// It is not.
    pub fn expect(&self, name: &str, num_bytes: usize) -> Result<()> {
        match self.tensors.get(self.next) {
            Some(spec) if spec.name == name && spec.num_bytes() == num_bytes => Ok(()),
            _ => Err(self.unexpected(name, num_bytes)),
        }
    }

    /// Writes the next bytes of the next tensor.
    ///
    /// # Errors
    /// It is not the next one, has fewer bytes, or the disk refuses.
    pub fn write_part(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.begin_part(name, bytes.len())?;
        if let Some(hash) = &mut self.hash {
            hash.0.update(bytes);
        }
        if let Some(file) = &mut self.file {
            file.write(bytes)?;
        }
        self.end_part(name, bytes.len());
        Ok(())
    }

    /// The same with bytes of another file, which the kernel copies: nobody sees them, so no checksum is taken.
    ///
    /// # Errors
    /// As [`WeightWriter::write_part`]; the other file has fewer bytes; checksums are wanted.
    pub fn copy_part(&mut self, name: &str, from: &FileRange<'_>) -> Result<()> {
        let num_bytes = (from.range.end - from.range.start) as usize;
        if self.hash.is_some() {
            return Err(Error::write(&self.target)(io::Error::other("copied bytes have no checksum")));
        }
        self.begin_part(name, num_bytes)?;
        if let Some(file) = &mut self.file {
            file.copy(from)?;
        }
        self.end_part(name, num_bytes);
        Ok(())
    }

    /// Checks that the next tensor is `name` and lacks `num_bytes`; the first of a file begins it.
    fn begin_part(&mut self, name: &str, num_bytes: usize) -> Result<()> {
        match self.tensors.get(self.next).filter(|spec| spec.name == name) {
            Some(spec) if self.filled + num_bytes <= spec.num_bytes() => {}
            _ => return Err(self.unexpected(name, self.filled + num_bytes)),
        }
        if self.filled == 0 && self.shard_starts.contains(&self.next) {
            self.create_shard()?;
        }
        Ok(())
    }

    /// Takes note of `num_bytes` more of the next tensor.
    fn end_part(&mut self, name: &str, num_bytes: usize) {
        self.filled += num_bytes;
        if self.filled == self.tensors[self.next].num_bytes() {
            if let Some(hash) = &mut self.hash {
                self.hashes.insert(name.to_owned(), format!("{:016x}", hash.0.digest()));
                hash.0.reset();
            }
            self.missing.remove(&self.next);
            (self.next, self.filled) = (self.next + 1, 0);
        }
    }

    fn unexpected(&self, name: &str, num_bytes: usize) -> Error {
        let expected = self.tensors.get(self.next).map_or("no more tensors".to_owned(), |spec| {
            format!("{} with {} bytes", spec.name, spec.num_bytes())
        });
        Error::Dtype { tensor: name.to_owned(), expected, got: format!("{num_bytes} bytes") }
    }

    /// Adds a file beside the weights, such as `config.json`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn add_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let write = || {
            let mut file = File::create(self.temporary.join(name))?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(Error::write(&self.target.join(name)))
    }

    /// Syncs everything, renames the directory into place, and returns the hash of every tensor.
    ///
    /// # Errors
    /// A tensor was not written, the target appeared meanwhile, or the disk refuses.
    pub fn finish(mut self) -> Result<BTreeMap<String, String>> {
        if let Some(spec) = self.missing.first().and_then(|tensor| self.tensors.get(*tensor)) {
            return Err(Error::NoTensor { path: self.target.clone(), tensor: spec.name.clone() });
        }
        self.end_shard()?;
        if self.shard_starts.len() > 1 {
            self.add_file("model.safetensors.index.json", &self.index())?;
        }
        sync_dir(&self.temporary)?;
        fs::rename(&self.temporary, &self.target).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                Error::Exists { path: self.target.clone() }
            }
            _ => Error::write(&self.target)(error),
        })?;
        self.is_owner = false;
        if let Some(parent) = self.target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
        Ok(std::mem::take(&mut self.hashes))
    }

    fn create_shard(&mut self) -> Result<()> {
        self.close_shard()?;
        let shard = self.shard_of(self.next);
        let (header, name) = (self.header(shard), self.shard_name(shard));
        // Messages name the place the file is for.
        let mut file = ShardFile::create(&self.temporary.join(&name), self.target.join(&name))?;
        file.write(&header)?;
        self.file = Some(file);
        Ok(())
    }

    /// Ends the file that is being written; another thread makes it durable.
    fn close_shard(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            self.syncing.push(file.close()?);
        }
        Ok(())
    }

    /// Waits until all that was written is durable; whoever has joined calls it behind its last tensor.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn end_shard(&mut self) -> Result<()> {
        self.close_shard()?;
        self.syncing.drain(..).try_for_each(Pending::wait)
    }

    fn header(&self, shard: usize) -> Vec<u8> {
        let mut metadata = Map::new();
        metadata.insert("format".to_owned(), "pt".into());
        metadata.insert("slime_version".to_owned(), env!("CARGO_PKG_VERSION").into());
        let tensors = self.tensors[self.shard(shard)].iter();
        safetensors::write_header(&metadata, tensors.map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())))
    }

    fn shard_of(&self, tensor: usize) -> usize {
        self.shard_starts.partition_point(|start| *start <= tensor) - 1
    }

    fn shard_name(&self, shard: usize) -> String {
        match self.shard_starts.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
        }
    }

    fn index(&self) -> Vec<u8> {
        let place = |(i, spec): (usize, &TensorSpec)| {
            (spec.name.clone(), Value::from(self.shard_name(self.shard_of(i))))
        };
        let weight_map: Map<String, Value> = self.tensors.iter().enumerate().map(place).collect();
        let total: usize = self.tensors.iter().map(TensorSpec::num_bytes).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        format!("{index:#}\n").into_bytes()
    }
}

impl Drop for WeightWriter {
    fn drop(&mut self) {
        if self.is_owner {
            // The error that led here is already on its way; a temporary directory that stays harms nobody.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// The target's full name and a new, empty directory beside it.
fn begin(target: &Path) -> Result<(PathBuf, PathBuf)> {
    let mut target = target.to_owned();
    if target.file_name().is_none() {
        // `.` and `a/..` have no last name to put a temporary one beside.
        target = fs::canonicalize(&target).map_err(Error::write(&target))?;
    }
    let is_free = match fs::read_dir(&target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => target.symlink_metadata().is_err(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !is_free {
        return Err(Error::Exists { path: target });
    }
    let temporary = slime_cli::temporary_beside(&target);
    match fs::remove_dir_all(&temporary) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(Error::write(&target)(error))
        }
        // What a killed process of the same number left is no part of this directory.
        _ => fs::create_dir_all(&temporary).map_err(Error::write(&target)).map(|()| (target, temporary)),
    }
}

fn shard_starts(tensors: &[TensorSpec], max_shard_bytes: usize) -> Vec<usize> {
    let mut starts = vec![0];
    let mut filled = 0;
    for (i, spec) in tensors.iter().enumerate() {
        if filled > 0 && filled + spec.num_bytes() > max_shard_bytes {
            starts.push(i);
            filled = 0;
        }
        filled += spec.num_bytes();
    }
    starts
}

fn sync_dir(path: &Path) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(Error::write(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype: Dtype::U8, shape: vec![3] }
    }

    #[test]
    fn unfinished_directory_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let mut writer =
            WeightWriter::create(root.path().join("w"), vec![spec("a"), spec("b")], 100).unwrap();
        writer.write("a", &[1, 2, 3]).unwrap();
        assert!(writer.write("c", &[1, 2, 3]).unwrap_err().to_string().contains("expected b with 3 bytes"));
        assert!(matches!(writer.finish().unwrap_err(), Error::NoTensor { tensor, .. } if tensor == "b"));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn shards_of_several_writers_make_the_directory_of_one() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        let specs = || vec![spec("a"), spec("b"), spec("c")];
        let mut writer = WeightWriter::create(&one, specs(), 3).unwrap();
        for name in ["a", "b", "c"] {
            writer.write_part(name, &[1]).unwrap();
            writer.write_part(name, &[2, 3]).unwrap();
        }
        let hashes = writer.finish().unwrap();
        assert_eq!(hashes["b"], tensor_hash(&[1, 2, 3]));
        let mut first = WeightWriter::create(&two, specs(), 3).unwrap();
        let mut second = WeightWriter::join(&two, first.temporary(), specs(), 3);
        assert!(first.adopt_shard(1).is_err());
        let write = |writer: &mut WeightWriter, shard, name| {
            writer.begin_shard(shard);
            writer.write(name, &[1, 2, 3]).unwrap();
            writer.end_shard().unwrap();
        };
        write(&mut first, 2, "c");
        write(&mut second, 1, "b");
        write(&mut first, 0, "a");
        drop(second);
        first.adopt_shard(1).unwrap();
        first.finish().unwrap();
        for entry in fs::read_dir(&one).unwrap() {
            let name = entry.unwrap().file_name();
            assert_eq!(fs::read(one.join(&name)).unwrap(), fs::read(two.join(&name)).unwrap(), "{name:?}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn target_in_use_is_not_touched() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("precious"), "x").unwrap();
        let error = WeightWriter::create(root.path(), vec![spec("a")], 100).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        let below_a_file = root.path().join("precious/w");
        let error = WeightWriter::check_target(&below_a_file).unwrap_err();
        assert_eq!(error.exit_code(), 73);
        assert!(error.to_string().contains("cannot write: Not a directory"), "{error}");
        assert_eq!(fs::read_to_string(root.path().join("precious")).unwrap(), "x");
    }

    #[test]
    fn checked_target_is_still_free() {
        let root = tempfile::tempdir().unwrap();
        WeightWriter::check_target(root.path().join("w")).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn hashes_are_those_of_the_bytes() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = WeightWriter::create(root.path().join("w"), vec![spec("a")], 100).unwrap();
        writer.write("a", &[1, 2, 3]).unwrap();
        assert_eq!(writer.finish().unwrap()["a"], tensor_hash(&[1, 2, 3]));
    }
}
