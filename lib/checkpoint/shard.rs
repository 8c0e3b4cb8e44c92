//! What a rank hands over: flat ranges of named tensors as raw bytes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Element type. HDF5 has no bf16: such data are stored as u16 with the name in the attribute `dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// bfloat16.
    Bf16,
    /// Byte.
    U8,
    /// 64-bit unsigned.
    U64,
    /// 64-bit signed.
    I64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 | Self::U64 | Self::I64 => 8,
        }
    }

    /// The name in the index and in the attribute `dtype`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::U8 => "u8",
            Self::U64 => "u64",
            Self::I64 => "i64",
        }
    }
}

/// A tensor of the whole world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: Dtype,
    /// Global shape.
    pub shape: Vec<u64>,
}

impl TensorInfo {
    /// Elements of the whole tensor.
    pub fn num_elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// A flat range of one tensor, row-major, as this rank holds it. A box that is no single range is several shards.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The tensor's name; `/` makes groups in the file.
    pub name: String,
    /// Type and global shape, the same on all ranks.
    pub tensor: TensorInfo,
    /// Which of the tensor's elements; may be empty.
    pub range: Range<u64>,
    /// The elements, little-endian.
    pub bytes: Vec<u8>,
}

impl Shard {
    /// A shard that is the whole tensor.
    pub fn whole(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>, bytes: Vec<u8>) -> Self {
        let tensor = TensorInfo { dtype, shape };
        let range = 0..tensor.num_elements();
        Self { name: name.into(), tensor, range, bytes }
    }

    /// Name of the dataset in the rank's file: a rank may hold several ranges of one tensor.
    pub(crate) fn dataset(&self) -> String {
        format!("{}@{}", self.name, self.range.start)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |reason: String| Err(Error::Shard { name: self.name.clone(), reason });
        let total = self.tensor.num_elements();
        if self.range.start > self.range.end || self.range.end > total {
            return wrong(format!("expected a range within 0..{total}, got {:?}", self.range));
        }
        let expected = (self.range.end - self.range.start) * self.tensor.dtype.size() as u64;
        if expected != self.bytes.len() as u64 {
            return wrong(format!(
                "expected {expected} bytes for {:?}, got {}",
                self.range,
                self.bytes.len()
            ));
        }
        if self.name.is_empty() || self.name.split('/').any(|part| part.is_empty() || part == ".") {
            return wrong("expected a name whose parts between `/` are not empty".into());
        }
        Ok(())
    }
}

/// The state of one rank at one moment: copies, so training goes on while it is written.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// This rank.
    pub rank: usize,
    /// Ranks of the world.
    pub world_size: usize,
    /// The start of the trainer that writes, the same on all ranks (epoch and incarnation): parts that an earlier
    /// start left in the folder are not taken.
    pub token: String,
    /// Small state: step, cursor, provenance. Rank 0's is kept.
    pub meta: serde_json::Value,
    /// This rank's part of the tensors.
    pub shards: Vec<Shard>,
}
