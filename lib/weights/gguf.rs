//! The GGUF container: metadata and tensors of one mapped file; it does not know what a model is.
//!
//! Definition: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::gguf_block::BlockType;
use crate::mapping::{map_file, mapped};
use crate::{Error, Result};

/// A metadata value; integers are widened, and a float is the shortest decimal of its f32.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text (invalid bytes replaced).
    Text(String),
    /// Values of one type.
    Array(Vec<GgufValue>),
}

impl GgufValue {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A tensor of the file.
#[derive(Debug, Clone)]
pub struct GgufTensor {
    /// The type of its elements or blocks.
    pub block_type: BlockType,
    /// The dimensions, outermost first (the file has them innermost first).
    pub shape: Vec<usize>,
    range: Range<usize>,
}

impl GgufTensor {
    /// Bytes in the file.
    pub fn num_bytes(&self) -> usize {
        self.range.len()
    }
}

/// An opened GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: File,
    map: Mmap,
    metadata: BTreeMap<String, GgufValue>,
    tensors: BTreeMap<String, GgufTensor>,
}

impl Gguf {
    /// Opens a file and checks that all its tensors are inside and of known types.
    ///
    /// # Errors
    /// It cannot be read, is not GGUF, is truncated, or has a tensor of a type that is not read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, map) = map_file(path)?;
        let (metadata, tensors) = parse(path, &map)?;
        Ok(Self { path: path.to_owned(), file, map, metadata, tensors })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors by their GGUF names.
    pub fn tensors(&self) -> &BTreeMap<String, GgufTensor> {
        &self.tensors
    }

    /// All metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.metadata
    }

    /// A metadata value, if the key is there.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// A text value, if the key is there.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_text()
    }

    /// A non-negative integer, if the key is there.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            GgufValue::Unsigned(value) => Some(*value),
            GgufValue::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The texts of an array, if the key is there and all its elements are texts.
    pub fn texts(&self, key: &str) -> Option<Vec<&str>> {
        let GgufValue::Array(values) = self.get(key)? else { return None };
        values.iter().map(GgufValue::as_text).collect()
    }

    /// The values of a tensor, row-major.
    ///
    /// # Errors
    /// There is no such tensor, or its bytes cannot be read (any more).
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>> {
        let missing = || Error::NoTensor { path: self.path.clone(), tensor: name.to_owned() };
        let tensor = self.tensors.get(name).ok_or_else(missing)?;
        Ok(tensor.block_type.to_f32(mapped(&self.path, &self.map, tensor.range.clone())?))
    }

    /// The values of the rows `rows` (of the first dimension) of a tensor of at least two, row-major.
    ///
    /// # Errors
    /// There is no such tensor, or its bytes cannot be read (any more).
    pub(crate) fn rows_to_f32(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
        let missing = || Error::NoTensor { path: self.path.clone(), tensor: name.to_owned() };
        let tensor = self.tensors.get(name).ok_or_else(missing)?;
        // Blocks lie within rows. They are read, for pages that were looked at in a mapping stay in memory.
        let of_row = tensor.range.len() / tensor.shape.first().copied().unwrap_or(1).max(1);
        let mut bytes = vec![0; rows.len() * of_row];
        self.file
            .read_exact_at(&mut bytes, (tensor.range.start + rows.start * of_row) as u64)
            .map_err(|source| Error::Read { path: self.path.clone(), source })?;
        Ok(tensor.block_type.to_f32(&bytes))
    }
}

type Parsed = (BTreeMap<String, GgufValue>, BTreeMap<String, GgufTensor>);

fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed> {
    let mut reader = Reader { path, bytes, at: 0 };
    if reader.take(4)? != b"GGUF" {
        return Err(Error::corrupt(path, "not a GGUF file: it does not begin with GGUF"));
    }
    let version = reader.u32()?;
    if !matches!(version, 2 | 3) {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            what: format!("GGUF version {version}"),
            hint: "versions 2 and 3, little-endian, are read".to_owned(),
        });
    }
    let (num_tensors, num_values) = (reader.count(24)?, reader.count(13)?);
    let mut metadata = BTreeMap::new();
    for _ in 0..num_values {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind, &key)?;
        metadata.insert(key, value);
    }
    let mut places = Vec::with_capacity(num_tensors);
    for _ in 0..num_tensors {
        places.push(read_place(&mut reader)?);
    }
    let alignment = match metadata.get("general.alignment") {
        Some(GgufValue::Unsigned(value)) if *value > 0 => *value as usize,
        None => 32,
        Some(other) => return Err(Error::corrupt(path, format!("general.alignment is {other:?}"))),
    };
    let start = reader.at.next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, block_type, shape, offset) in places {
        let sizes = block_type.num_bytes(&shape).and_then(|size| {
            let begin = usize::try_from(offset).ok()?.checked_add(start)?;
            Some(begin..begin.checked_add(size)?)
        });
        let range = sizes.ok_or_else(|| {
            Error::corrupt(path, format!("tensor {name}: {block_type:?} {shape:?} at {offset} has no size"))
        })?;
        if range.end > bytes.len() {
            return Err(truncated(path, format!("tensor {name}"), range.end, bytes.len()));
        }
        if tensors.insert(name.clone(), GgufTensor { block_type, shape, range }).is_some() {
            return Err(Error::corrupt(path, format!("tensor {name} is there twice")));
        }
    }
    Ok((metadata, tensors))
}

fn read_place(reader: &mut Reader<'_>) -> Result<(String, BlockType, Vec<usize>, u64)> {
    let name = reader.text()?;
    let num_dims = reader.u32()?;
    if num_dims > 4 {
        return Err(Error::corrupt(reader.path, format!("tensor {name} has {num_dims} dimensions")));
    }
    let mut shape =
        (0..num_dims).map(|_| reader.u64().map(|dim| dim as usize)).collect::<Result<Vec<_>>>()?;
    shape.reverse();
    let block_type = BlockType::from_number(reader.u32()?).map_err(|kind| Error::Unsupported {
        path: reader.path.to_owned(),
        what: format!("GGUF type {kind} of tensor {name}"),
        hint: format!("read are {}; fetch one of those quantisations", BlockType::names()),
    })?;
    Ok((name, block_type, shape, reader.u64()?))
}

fn truncated(path: &Path, what: String, expected: usize, got: usize) -> Error {
    Error::Truncated { path: path.to_owned(), what, expected: expected as u64, got: got as u64 }
}

struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.saturating_add(len);
        let taken = self.bytes.get(self.at..end).ok_or_else(|| {
            truncated(self.path, "the metadata and the list of tensors".to_owned(), end, self.bytes.len())
        })?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things of at least `min_bytes` each, which must fit into the rest of the file.
    fn count(&mut self, min_bytes: usize) -> Result<usize> {
        let count = self.u64()? as usize;
        let end = count.saturating_mul(min_bytes).saturating_add(self.at);
        if end > self.bytes.len() {
            return Err(truncated(self.path, format!("{count} entries of a list"), end, self.bytes.len()));
        }
        Ok(count)
    }

    fn text(&mut self) -> Result<String> {
        let len = self.count(1)?;
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<GgufValue> {
        Ok(match kind {
            0 => GgufValue::Unsigned(self.array::<1>()?[0].into()),
            1 => GgufValue::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => GgufValue::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => GgufValue::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => GgufValue::Unsigned(self.u32()?.into()),
            5 => GgufValue::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => {
                let value = f32::from_le_bytes(self.array()?);
                GgufValue::Float(value.to_string().parse().unwrap_or(f64::from(value)))
            }
            7 => GgufValue::Bool(self.array::<1>()?[0] != 0),
            8 => GgufValue::Text(self.text()?),
            9 => {
                let kind = self.u32()?;
                if kind == 9 {
                    return Err(Error::corrupt(
                        self.path,
                        format!("key {key}: arrays of arrays are not read"),
                    ));
                }
                let len = self.count(1)?;
                GgufValue::Array((0..len).map(|_| self.value(kind, key)).collect::<Result<_>>()?)
            }
            10 => GgufValue::Unsigned(self.u64()?),
            11 => GgufValue::Signed(i64::from_le_bytes(self.array()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            _ => {
                return Err(Error::corrupt(
                    self.path,
                    format!("key {key} has the unknown value type {kind}"),
                ));
            }
        })
    }
}
