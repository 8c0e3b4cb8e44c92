//! safetensors and GGUF files, storages and views, and the table of tensors of each family.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod dtype;
mod error;
mod family;
mod safetensors;
mod storage;
mod weight_dir;
mod weight_writer;

pub use dtype::Dtype;
pub use error::{Error, Result};
pub use family::{check, storages};
pub use safetensors::TensorInfo;
pub use storage::{StorageSpec, Transform, ViewSpec};
pub use weight_dir::{TensorView, WeightDir};
pub use weight_writer::{MAX_SHARD_BYTES, TensorSpec, WeightWriter, tensor_hash};
