//! Our CUDA kernels: each a `.cu` file, specialised and compiled at first use, with a naive reference beside it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
pub mod head_loss;
pub mod paged_attention;
mod registry;

pub use error::{Error, Result};
