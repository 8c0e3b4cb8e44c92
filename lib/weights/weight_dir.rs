//! A weight directory in the Hugging Face layout, mapped read-only: one safetensors file or shards with an index.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use rayon::prelude::*;
use slime_config::TensorBox;

use crate::mapping::{map_file, mapped};
use crate::quantised::{self, Method, Part, QuantisedWeight};
use crate::safetensors::{self, Entry};
use crate::shard_index::{read_index, unlisted_shard};
use crate::{Dtype, Error, FileRange, Result, TensorInfo, cast, dtype};

/// An opened weight directory (or a single safetensors file); all headers are checked.
///
/// Where `config.json` says that weights are quantised, each of them is one tensor of bf16 under its usual name, whatever
/// the tensors are that hold it.
#[derive(Debug)]
pub struct WeightDir {
    path: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, (TensorInfo, Source)>,
    /// The stored tensors that make up quantised ones.
    parts: BTreeMap<String, (TensorInfo, Place)>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    map: Mmap,
}

/// Where a stored tensor lies.
#[derive(Debug, Clone)]
struct Place {
    shard: usize,
    range: Range<usize>,
}

/// Where the elements of a tensor come from.
#[derive(Debug)]
enum Source {
    Stored(Place),
    Quantised(QuantisedWeight),
}

/// A tensor of an opened directory.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// The Hugging Face name.
    pub name: &'a str,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
    /// The little-endian elements, row-major: the mapped ones, or those computed from a quantised form.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> TensorView<'a> {
    /// The elements in another floating type (rounded to nearest even), or the mapped bytes when it is the same.
    ///
    /// # Errors
    /// One of the types is not floating.
    pub fn cast(self, to: Dtype) -> Result<Cow<'a, [u8]>> {
        converted(self.name, self.bytes, self.dtype, to)
    }

    /// The elements as f32.
    ///
    /// # Errors
    /// The type is not one of F64, F32, F16, BF16.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        dtype::decode_f32(self.name, &self.bytes, self.dtype)
    }
}

impl WeightDir {
    /// Opens a directory with `model.safetensors` or `model.safetensors.index.json`, or one `.safetensors` file.
    ///
    /// # Errors
    /// Nothing is there, a file is truncated, corrupt, or contradicts the index, or weights are quantised in a way that is
    /// not known or not whole.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let mut opened = Self::open_stored(&path)?;
        if let Some(method) = Method::of_dir(path.as_ref())? {
            opened.join_parts(method)?;
        }
        Ok(opened)
    }

    /// The same with the tensors as they are stored, quantised ones in their parts.
    ///
    /// # Errors
    /// Nothing is there, or a file is truncated, corrupt, or contradicts the index.
    pub fn open_stored(path: impl AsRef<Path>) -> Result<Self> {
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
        if let Some(other) = unlisted_shard(path, &files)? {
            return Err(Error::corrupt(&index, format!("shard {other} beside it is not in the index")));
        }
        let opened = Self::from_shards(path, &files)?;
        for (name, file) in &weight_map {
            let Some((_, Source::Stored(place))) = opened.tensors.get(name) else {
                return Err(Error::NoTensor { path: path.join(file), tensor: name.clone() });
            };
            if opened.shards[place.shard].path != path.join(file) {
                return Err(Error::corrupt(&index, format!("tensor {name} is not in {file}")));
            }
        }
        Ok(opened)
    }

    /// Puts quantised weights in the place of their parts.
    fn join_parts(&mut self, method: Method) -> Result<()> {
        let infos = self.tensors.iter().map(|(name, (info, _))| (name.as_str(), info));
        let (weights, parts) = quantised::find(method, infos, &self.path)?;
        for name in parts {
            if let Some((info, Source::Stored(place))) = self.tensors.remove(&name) {
                self.parts.insert(name, (info, place));
            }
        }
        for (name, weight) in weights {
            let info = TensorInfo { dtype: Dtype::BF16, shape: weight.shape.to_vec() };
            if self.tensors.insert(name.clone(), (info, Source::Quantised(weight))).is_some() {
                return Err(Error::corrupt(
                    &self.path,
                    format!("tensor {name} is there as it is and quantised"),
                ));
            }
        }
        Ok(())
    }

    fn from_shards(path: &Path, files: &[PathBuf]) -> Result<Self> {
        let (tensors, parts) = (BTreeMap::new(), BTreeMap::new());
        let mut opened = Self { path: path.to_owned(), shards: Vec::new(), tensors, parts };
        for (shard, file_path) in files.iter().enumerate() {
            let (file, map) = map_file(file_path)?;
            for Entry { name, info, range } in safetensors::read_header(file_path, &map)? {
                let source = Source::Stored(Place { shard, range });
                if opened.tensors.insert(name.clone(), (info, source)).is_some() {
                    return Err(Error::corrupt(file_path, format!("tensor {name} is also in another shard")));
                }
            }
            opened.shards.push(Shard { path: file_path.clone(), file, map });
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

    /// Type and shape of a tensor.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.tensors.get(name).map(|(info, _)| info).ok_or_else(|| self.missing(name))
    }

    /// The file that holds a stored tensor and its bytes there, for readers that do not map.
    ///
    /// # Errors
    /// There is no such tensor, or it is made up of several.
    pub fn place(&self, name: &str) -> Result<(&Path, Range<usize>)> {
        match self.tensors.get(name) {
            Some((_, Source::Stored(place))) => Ok((&self.shards[place.shard].path, place.range.clone())),
            _ => Err(self.missing(name)),
        }
    }

    /// A tensor, whose bytes are then in memory.
    ///
    /// # Errors
    /// There is no such tensor, or its bytes cannot be read (any more).
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        let (name, (info, source)) = self.tensors.get_key_value(name).ok_or_else(|| self.missing(name))?;
        let bytes = match source {
            Source::Stored(place) => Cow::Borrowed(self.bytes(place)?),
            Source::Quantised(weight) => Cow::Owned(weight.read(|part| self.stored_part(part))?),
        };
        Ok(TensorView { name, dtype: info.dtype, shape: &info.shape, bytes })
    }

    /// The elements of a box of a tensor in a floating type, row-major. Where the box is one run of the file, only its
    /// bytes are read; a box of columns reads from its first to its last byte, a quantised tensor is computed whole.
    ///
    /// # Errors
    /// There is no such tensor, its type does not convert, or its bytes cannot be read (any more).
    pub fn part(&self, name: &str, part: &TensorBox, to: Dtype) -> Result<Cow<'_, [u8]>> {
        let (name, (info, source)) = self.tensors.get_key_value(name).ok_or_else(|| self.missing(name))?;
        let width = info.dtype.num_bytes();
        let runs = TensorBox::whole(&info.shape).runs(part);
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(Cow::default()) };
        let span = first.from * width..(last.from + last.len) * width;
        let bytes = match source {
            Source::Stored(place) => {
                let range = place.range.start + span.start..place.range.start + span.end;
                Cow::Borrowed(self.bytes(&Place { shard: place.shard, range })?)
            }
            Source::Quantised(_) => Cow::Owned(self.tensor(name)?.bytes[span].to_vec()),
        };
        if let [_] = runs[..] {
            return converted(name, bytes, info.dtype, to);
        }
        let mut gathered = Vec::with_capacity(part.num_elements() * width);
        for run in &runs {
            let start = (run.from - first.from) * width;
            gathered.extend_from_slice(&bytes[start..start + run.len * width]);
        }
        converted(name, Cow::Owned(gathered), info.dtype, to)
    }

    /// Elements `range` of a tensor in `buffer`. A stored one is not mapped for it, so that a walk through files of any size
    /// takes the room of its steps.
    ///
    /// # Errors
    /// There is no such tensor, it is shorter, or its bytes cannot be read (any more).
    pub fn read_elements(&self, name: &str, range: Range<usize>, buffer: &mut Vec<u8>) -> Result<()> {
        let (size, stored) = (self.info(name)?.dtype.num_bytes(), self.file_range(name, range.clone())?);
        buffer.resize(range.len() * size, 0);
        match stored {
            None => buffer.copy_from_slice(&self.tensor(name)?.bytes[range.start * size..range.end * size]),
            Some(FileRange { path, file, range }) => {
                file.read_exact_at(buffer, range.start).map_err(Error::read(path))?;
            }
        }
        Ok(())
    }

    /// Where the elements `range` of a tensor lie; nowhere if they are computed from a quantised form.
    ///
    /// # Errors
    /// The tensor is missing or has fewer elements.
    pub fn file_range(&self, name: &str, range: Range<usize>) -> Result<Option<FileRange<'_>>> {
        let (info, source) = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        let len = info.shape.iter().product::<usize>();
        if range.end > len {
            let (expected, got) = (format!("at least {} elements", range.end), len.to_string());
            return Err(Error::Dtype { tensor: name.to_owned(), expected, got });
        }
        let Source::Stored(place) = source else { return Ok(None) };
        let Shard { path, file, .. } = &self.shards[place.shard];
        let offset = |element: usize| (place.range.start + element * info.dtype.num_bytes()) as u64;
        Ok(Some(FileRange { path, file, range: offset(range.start)..offset(range.end) }))
    }

    /// Whether a tensor is computed from quantised parts, all of it at once.
    pub fn is_quantised(&self, name: &str) -> bool {
        matches!(self.tensors.get(name), Some((_, Source::Quantised(_))))
    }

    /// A part of a quantised weight.
    fn stored_part(&self, name: &str) -> Result<Part<'_>> {
        let (info, place) = self.parts.get(name).ok_or_else(|| self.missing(name))?;
        Ok(Part { dtype: info.dtype, shape: &info.shape, bytes: self.bytes(place)? })
    }

    fn bytes(&self, place: &Place) -> Result<&[u8]> {
        let shard = &self.shards[place.shard];
        mapped(&shard.path, &shard.map, place.range.clone())
    }

    fn missing(&self, name: &str) -> Error {
        Error::NoTensor { path: self.path.clone(), tensor: name.to_owned() }
    }

    /// Number of elements of all tensors.
    pub fn num_parameters(&self) -> u64 {
        self.tensors.values().map(|(info, _)| info.shape.iter().product::<usize>() as u64).sum()
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
            let index = dtype::first_not_finite(&tensor.bytes, tensor.dtype)?;
            Some(Error::NotFinite { path: self.path.clone(), tensor: (*name).to_owned(), index })
        });
        bad.map_or(Ok(()), Err)
    }
}

/// Elements in another floating type, or as they are when it is the same.
fn converted<'a>(name: &str, bytes: Cow<'a, [u8]>, from: Dtype, to: Dtype) -> Result<Cow<'a, [u8]>> {
    if from == to {
        return Ok(bytes);
    }
    cast(name, &bytes, from, to).map(|bytes| Cow::Owned(bytes.into_owned()))
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
        fs::write(&index, text.replacen('{', "{\"weight_map\": {},", 1)).unwrap();
        assert!(WeightDir::open(&dir).is_err(), "two maps");
        fs::write(&index, text).unwrap();
        fs::copy(dir.join("model-00001-of-00003.safetensors"), dir.join("model-00004-of-00004.safetensors"))
            .unwrap();
        let error = WeightDir::open(&dir).unwrap_err().to_string();
        assert!(
            error.contains("shard model-00004-of-00004.safetensors beside it is not in the index"),
            "{error}"
        );
    }

    #[test]
    fn missing_and_empty_directories_are_no_input() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(WeightDir::open(root.path()).unwrap_err().exit_code(), 66);
        assert_eq!(WeightDir::open(root.path().join("none")).unwrap_err().exit_code(), 66);
    }
}
