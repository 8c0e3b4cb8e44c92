//! safetensors and GGUF files, storages and views, and the table of tensors of each family.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod adapter;
mod dtype;
mod error;
mod family;
mod gguf;
mod gguf_block;
mod gguf_k_block;
mod gguf_model;
mod gguf_tokenizer;
mod mapping;
mod peft;
mod plan;
mod quantised;
mod safetensors;
mod shard_file;
mod shard_index;
mod split;
mod storage;
mod unique_keys;
mod weight_dir;
mod weight_writer;

pub use adapter::{Adapter, adapters, target_modules};
pub use dtype::{Dtype, cast, decode_f32, encode_f32, first_not_finite};
pub use error::{Error, Result};
pub use family::{check, is_carried, is_f32, mtp, storages, value_head};
pub use gguf::{Gguf, GgufTensor, GgufValue};
pub use gguf_block::BlockType;
pub use gguf_model::GgufSource;
pub use peft::PeftAdapter;
pub use plan::{Plan, PlanLayout, StageShare, dry_run_comment, gib};
pub use quantised::{QuantisedForm, Quantiser};
pub use safetensors::{TensorInfo, header};
pub use shard_file::FileRange;
pub use split::{Place, Share, is_of_stage, kv_copies, kv_heads, split};
pub use storage::{StorageSpec, Transform, ViewSpec};
pub use weight_dir::{TensorView, WeightDir};
pub use weight_writer::{MAX_SHARD_BYTES, TensorSpec, WeightWriter, checksum, tensor_hash};
