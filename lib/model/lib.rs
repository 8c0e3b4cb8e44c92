//! The op vocabulary, the composition of layers and the parameters of a decoder.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod adapters;
mod context;
mod decode_steps;
mod device_batch;
mod error;
mod fp8_products;
mod kv_cache;
mod layer;
mod load;
mod mlp;
mod model;
mod mtp;
pub mod ops;
mod packed_lists;
mod parallel;
mod param_store;
mod rope;
mod routing;
mod run;
mod spans;
mod staging;
mod step_lists;
mod tape;
mod token_shares;
mod whole_tensors;
mod workspace;

pub use context::{Context, Packed, Paged, Segment};
pub use decode_steps::{DecodeRow, DecodeSteps, RowDraw};
pub use error::{Error, Result};
pub use kv_cache::KvCache;
pub use layer::Layer;
pub use load::Extra;
pub use model::Model;
pub use ops::head_log_probs::{KeptIds, Penalties, Seen, Shaping};
pub use parallel::{ContextRanks, Parallel};
pub use param_store::ParamStore;
pub use rope::Rope;
pub use routing::Routes;
pub use run::{Input, Output};
pub use spans::MERGE_LEN;
pub use tape::Tape;
pub use token_shares::TokenShares;
pub use whole_tensors::{WholeSpec, WholeTensors};
pub use workspace::Workspace;
