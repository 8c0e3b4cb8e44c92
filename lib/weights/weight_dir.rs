//! A weight directory in the Hugging Face layout, mapped read-only: one safetensors file or shards with an index.
#![expect(unsafe_code, reason = "maps committed weight files")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap};
use rayon::prelude::*;
use serde_json::{Map, Value};
use slime_config::TensorBox;

use crate::{Dtype, Error, Result, TensorInfo, dtype, safetensors};

/// An opened weight directory (or a single safetensors file); all headers are checked.
#[derive(Debug)]
pub struct WeightDir {
    path: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, (usize, TensorInfo)>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
}

/// A tensor of an opened directory.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The Hugging Face name.
    pub name: &'a str,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
    /// The little-endian elements, row-major.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The elements in another floating type (rounded to nearest even), or the mapped bytes when it is the same.
    ///
    /// # Errors
    /// One of the types is not floating.
    pub fn cast(&self, to: Dtype) -> Result<Cow<'a, [u8]>> {
        dtype::cast(self.bytes, self.dtype, to).ok_or_else(|| Error::Dtype {
            tensor: self.name.to_owned(),
            expected: format!("a tensor that converts to {to}"),
            got: self.dtype.to_string(),
        })
    }

    /// The elements as f32.
    ///
    /// # Errors
    /// The type is not one of F64, F32, F16, BF16.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        dtype::decode_f32(self.name, self.bytes, self.dtype)
    }
}

impl WeightDir {
    /// Opens a directory with `model.safetensors` or `model.safetensors.index.json`, or one `.safetensors` file.
    ///
    /// # Errors
    /// Nothing is there, or a file is truncated, corrupt, or contradicts the index.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if !fs::metadata(path).map_err(Error::read(path))?.is_dir() {
            return Self::from_shards(path, &[path.to_owned()]);
        }
        let single = path.join("model.safetensors");
        let index = path.join("model.safetensors.index.json");
        if single.exists() {
            return Self::from_shards(path, &[single]);
        }
        if !index.exists() {
            return Err(Error::NoWeights {
                path: path.to_owned(),
                expected: "model.safetensors or model.safetensors.index.json",
                hint: "make a weight directory with slime-convert import SRC DST",
            });
        }
        let weight_map = read_index(&index)?;
        let mut files: Vec<PathBuf> = weight_map.values().map(|file| path.join(file)).collect();
        files.sort();
        files.dedup();
        let opened = Self::from_shards(path, &files)?;
        for (name, file) in &weight_map {
            let Some((shard, _)) = opened.tensors.get(name) else {
                return Err(Error::NoTensor { path: path.join(file), tensor: name.clone() });
            };
            if opened.shards[*shard].path != path.join(file) {
                return Err(Error::corrupt(&index, format!("tensor {name} is not in {file}")));
            }
        }
        Ok(opened)
    }

    fn from_shards(path: &Path, files: &[PathBuf]) -> Result<Self> {
        let mut opened = Self { path: path.to_owned(), shards: Vec::new(), tensors: BTreeMap::new() };
        for (shard, file_path) in files.iter().enumerate() {
            let map = map_file(file_path)?;
            for (name, info) in safetensors::read_header(file_path, &map)? {
                if opened.tensors.insert(name.clone(), (shard, info)).is_some() {
                    return Err(Error::corrupt(file_path, format!("tensor {name} is also in another shard")));
                }
            }
            opened.shards.push(Shard { path: file_path.clone(), map });
        }
        Ok(opened)
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files that hold the tensors.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Type, shape and place of a tensor.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        Ok(self.place(name)?.1)
    }

    /// The file that holds a tensor and its place in it, for readers that do not map.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn place(&self, name: &str) -> Result<(&Path, &TensorInfo)> {
        let missing = || Error::NoTensor { path: self.path.clone(), tensor: name.to_owned() };
        let (shard, info) = self.tensors.get(name).ok_or_else(missing)?;
        Ok((&self.shards[*shard].path, info))
    }

    /// A tensor, whose bytes are then in memory.
    ///
    /// # Errors
    /// There is no such tensor, or its bytes cannot be read (any more).
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        let (name, info, bytes) = self.entry(name)?;
        Ok(TensorView { name, dtype: info.dtype, shape: &info.shape, bytes })
    }

    /// The elements of a box of a tensor in a floating type, row-major. Where the box is one run of the file, only its
    /// bytes are read; a box of columns reads from its first to its last byte.
    ///
    /// # Errors
    /// There is no such tensor, its type does not convert, or its bytes cannot be read (any more).
    pub fn part<'a>(&'a self, name: &str, part: &'a TensorBox, to: Dtype) -> Result<Cow<'a, [u8]>> {
        let missing = || Error::NoTensor { path: self.path.clone(), tensor: name.to_owned() };
        let (name, (shard, info)) = self.tensors.get_key_value(name).ok_or_else(missing)?;
        let (shard, width) = (&self.shards[*shard], info.dtype.num_bytes());
        let runs = TensorBox::whole(&info.shape).runs(part);
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(Cow::default()) };
        let span = info.range.start + first.from * width..info.range.start + (last.from + last.len) * width;
        let bytes = mapped(&shard.path, &shard.map, span)?;
        let view = |bytes| TensorView { name, dtype: info.dtype, shape: &part.shape, bytes };
        if let [_] = runs[..] {
            return view(bytes).cast(to);
        }
        let mut gathered = Vec::with_capacity(part.num_elements() * width);
        for run in &runs {
            let start = (run.from - first.from) * width;
            gathered.extend_from_slice(&bytes[start..start + run.len * width]);
        }
        let cast = dtype::cast(&gathered, info.dtype, to).map(Cow::into_owned);
        match cast {
            Some(bytes) => Ok(Cow::Owned(bytes)),
            // The whole tensor's view says what is wrong with its type.
            None => view(bytes).cast(to),
        }
    }

    fn entry(&self, name: &str) -> Result<(&str, &TensorInfo, &[u8])> {
        let missing = || Error::NoTensor { path: self.path.clone(), tensor: name.to_owned() };
        let (name, (shard, info)) = self.tensors.get_key_value(name).ok_or_else(missing)?;
        let shard = &self.shards[*shard];
        Ok((name, info, mapped(&shard.path, &shard.map, info.range.clone())?))
    }

    /// Number of elements of all tensors.
    pub fn num_parameters(&self) -> u64 {
        self.tensors.values().map(|(_, info)| info.shape.iter().product::<usize>() as u64).sum()
    }

    /// Reads every tensor and refuses NaN and infinities.
    ///
    /// # Errors
    /// The first such tensor by name, or one that cannot be read.
    pub fn check_finite(&self) -> Result<()> {
        let names: Vec<&str> = self.names().collect();
        let bad = names.par_iter().find_map_first(|name| {
            let tensor = match self.tensor(name) {
                Ok(tensor) => tensor,
                Err(error) => return Some(error),
            };
            let index = dtype::first_not_finite(tensor.bytes, tensor.dtype)?;
            Some(Error::NotFinite { path: self.path.clone(), tensor: (*name).to_owned(), index })
        });
        bad.map_or(Ok(()), Err)
    }
}

/// The bytes `range` of a mapped file, brought into memory now: a disk that fails or a file that another program cut
/// short is an error here, where a look at a missing page would end the process (SIGBUS).
pub(crate) fn mapped<'a>(path: &Path, map: &'a Mmap, range: Range<usize>) -> Result<&'a [u8]> {
    match map.advise_range(Advice::PopulateRead, range.start, range.len()) {
        // Kernels before 5.14 do not know the advice.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            let got = fs::metadata(path).map_err(Error::read(path))?.len();
            if got < range.end as u64 {
                let (what, expected) = ("mapped when it was opened".to_owned(), range.end as u64);
                return Err(Error::Truncated { path: path.to_owned(), what, expected, got });
            }
            Err(Error::read(path)(error))
        }
        _ => Ok(&map[range]),
    }
}

/// Maps a whole file read-only.
pub(crate) fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(Error::read(path))?;
    if file.metadata().map_err(Error::read(path))?.is_dir() {
        return Err(Error::read(path)(io::ErrorKind::IsADirectory.into()));
    }
    // SAFETY: weight files are committed under their name once and never change afterwards, and the map is read-only;
    // every length was checked against the map, and `mapped` populates what is read.
    unsafe { Mmap::map(&file) }.map_err(Error::read(path))
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read(path).map_err(Error::read(path))?;
    let index: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|error| Error::corrupt(path, format!("the index is not JSON: {error}")))?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| Error::corrupt(path, "key weight_map is missing"))?;
    map.iter()
        .map(|(name, file)| match file.as_str() {
            Some(file) if !file.contains(['/', '\\']) && file != ".." => Ok((name.clone(), file.to_owned())),
            _ => Err(Error::corrupt(path, format!("tensor {name}: expected a file name, got {file}"))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorSpec, WeightWriter};

    fn write(dir: &Path, max_shard_bytes: usize, value: f32) {
        let spec = |name: &str| TensorSpec { name: name.to_owned(), dtype: Dtype::F32, shape: vec![2, 2] };
        let mut writer =
            WeightWriter::create(dir, vec![spec("x"), spec("y"), spec("z")], max_shard_bytes).unwrap();
        for name in ["x", "y", "z"] {
            writer.write(name, &dtype::from_f32(&[1.0, 2.0, value, 4.0], Dtype::F32).unwrap()).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn shards_read_like_one_file() {
        let root = tempfile::tempdir().unwrap();
        for (name, max_bytes, num_files) in [("one", 1 << 20, 1), ("three", 20, 3)] {
            let dir = root.path().join(name);
            write(&dir, max_bytes, 3.0);
            let weights = WeightDir::open(&dir).unwrap();
            assert_eq!((weights.files().count(), weights.num_parameters()), (num_files, 12));
            assert_eq!(weights.names().collect::<Vec<_>>(), ["x", "y", "z"]);
            assert_eq!(weights.tensor("y").unwrap().to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0]);
            weights.check_finite().unwrap();
            assert_eq!(weights.tensor("q").unwrap_err().exit_code(), 65);
        }
    }

    #[test]
    fn not_a_number_is_named_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("nan");
        write(&dir, 1 << 20, f32::NAN);
        let error = WeightDir::open(&dir).unwrap().check_finite().unwrap_err();
        assert!(error.to_string().ends_with("tensor x: element 2 is not a finite number"), "{error}");
    }

    #[test]
    fn file_cut_short_while_it_is_open_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("w");
        let spec = TensorSpec { name: "x".to_owned(), dtype: Dtype::U8, shape: vec![1 << 16] };
        let mut writer = WeightWriter::create(&dir, vec![spec], 1 << 20).unwrap();
        writer.write("x", &vec![7; 1 << 16]).unwrap();
        writer.finish().unwrap();
        let weights = WeightDir::open(&dir).unwrap();
        let file = fs::OpenOptions::new().write(true).open(dir.join("model.safetensors")).unwrap();
        file.set_len(5000).unwrap();
        let error = weights.tensor("x").unwrap_err();
        assert!(error.to_string().contains("model.safetensors: truncated"), "{error}");
        assert!(weights.check_finite().is_err());
    }

    #[test]
    fn index_that_names_a_wrong_shard_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("w");
        write(&dir, 20, 3.0);
        let index = dir.join("model.safetensors.index.json");
        let text = fs::read_to_string(&index).unwrap();
        fs::write(&index, text.replacen("00001-of", "00002-of", 1)).unwrap();
        assert_eq!(WeightDir::open(&dir).unwrap_err().exit_code(), 65);
        fs::write(&index, text.replacen("model-00001-of", "../model-00001-of", 1)).unwrap();
        assert!(WeightDir::open(&dir).unwrap_err().to_string().contains("expected a file name"));
    }

    #[test]
    fn missing_and_empty_directories_are_no_input() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(WeightDir::open(root.path()).unwrap_err().exit_code(), 66);
        assert_eq!(WeightDir::open(root.path().join("none")).unwrap_err().exit_code(), 66);
    }
}
