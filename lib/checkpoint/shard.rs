//! What a rank hands over: parts of named tensors as raw bytes.

use serde::{Deserialize, Serialize};
use slime_config::TensorPart;

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
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Elements of the whole tensor.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A buffer of this rank: parts of tensors, one behind the other. It is one dataset of the rank's file.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The dataset's name, unique in the file; `/` makes groups.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// What the elements are, in order; may be none. The tensors' shapes and types are the same on all ranks.
    pub parts: Vec<TensorPart>,
    /// The elements, little-endian.
    pub bytes: Vec<u8>,
}

impl Shard {
    /// A shard that is the whole tensor of its name.
    pub fn whole(name: impl Into<String>, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        let name = name.into();
        Self { parts: vec![TensorPart::whole(name.clone(), shape)], name, dtype, bytes }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |reason: String| Err(Error::Shard { name: self.name.clone(), reason });
        for TensorPart { tensor, bounds, range, .. } in &self.parts {
            let total = bounds.num_elements();
            if range.start > range.end || range.end > total {
                return wrong(format!("expected a range within 0..{total} of {tensor}, got {range:?}"));
            }
        }
        let num_elements: usize = self.parts.iter().map(TensorPart::len).sum();
        let (expected, got) = (num_elements * self.dtype.size(), self.bytes.len());
        if expected != got {
            return wrong(format!("expected {expected} bytes for {num_elements} elements, got {got}"));
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
