//! Our CUDA kernels: each a `.cu` file, specialised and compiled at first use, with a naive reference beside it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod adamw;
pub mod add_norm;
mod arguments;
mod check;
pub mod decode_inputs;
mod error;
pub mod fake_int4;
pub mod fp8_cast;
pub mod head_loss;
pub mod kv_fp8;
pub mod paged_attention;
pub mod qk_norm_rope;
mod registry;
pub mod sample;
pub mod silu_mul;
pub mod sum_rows;
pub mod train_norm;
pub mod train_rope;

pub use check::is_element;
pub use error::{Error, Result};
