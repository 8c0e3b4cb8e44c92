//! What tch lacks: custom autograd functions, backward with given gradients, multi-tensor `AdamW` and norms, products
//! with packed weights, streams, attention of chunks, vector code for loops over plain memory, opening CUDA.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backward;
pub mod cuda;
mod custom_function;
pub mod deterministic;
pub mod device_collectives;
mod error;
mod ffi;
mod floats;
mod group;
mod multi_tensor;
mod out_of_memory;
mod packed_linear;
mod recomputed;
pub mod simd;
pub mod split_rows;
mod stream;
mod varlen_attention;
#[cfg(target_os = "linux")]
mod wait_policy;

pub use backward::{backward_with, forget_grad, no_grad};
pub use custom_function::{CustomFunction, Forward, custom_function};
pub use error::{Error, Result};
pub use floats::{Rows, bytes_mut, bytes_of, floats, floats_mut, rows_of};
pub use group::Group;
pub use multi_tensor::{AdamW, ParamState, adamw_step, clip_coefficient, global_norm};
pub use out_of_memory::OutOfMemory;
pub use packed_linear::PackedLinear;
pub use recomputed::recomputed;
pub use stream::{EnteredStream, Stream};
pub use varlen_attention::{Chunks, varlen_attention, varlen_attention_backward, varlen_attention_kept};
