//! What tch lacks: custom autograd functions, backward with given gradients, multi-tensor `AdamW` and norms, opening CUDA.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backward;
pub mod cuda;
mod custom_function;
mod error;
mod ffi;
mod floats;
mod multi_tensor;
#[cfg(target_os = "linux")]
mod wait_policy;

pub use backward::{backward_with, no_grad};
pub use custom_function::{CustomFunction, Forward, custom_function};
pub use error::{Error, Result};
pub use floats::{bytes_of, floats_mut};
pub use multi_tensor::{AdamW, ParamState, adamw_step, clip_coefficient, global_norm};
