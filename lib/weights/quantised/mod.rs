//! Weights in eight and four bits as they lie on the hub, to and from bf16.
//!
//! | form | tensors of a layer `x` | `quant_method` |
//! |---|---|---|
//! | fp8, blocks | `x.weight` `F8_E4M3` `[n, k]`, `x.weight_scale_inv` `[n/128, k/128]` | `fp8` |
//! | fp8, one scale or one a row | `x.weight` `F8_E4M3` `[n, k]`, `x.weight_scale` `[1]` or `[n, 1]` | `compressed-tensors`, `fp8` |
//! | int4, AWQ | `x.qweight` I32 `[k, n/8]`, `x.qzeros` I32 `[k/g, n/8]`, `x.scales` F16 `[k/g, n]` | `awq` |
//! | int4, GPTQ | `x.qweight` I32 `[k/8, n]`, `x.qzeros` I32 `[k/g, n/8]`, `x.scales` F16 `[k/g, n]`, `x.g_idx` I32 `[k]` | `gptq` |
//! | int4, compressed-tensors | `x.weight_packed` I32 `[n, k/8]`, `x.weight_scale` `[n, k/g]`, `x.weight_zero_point` I32 `[n/8, k/g]`, `x.weight_shape` I64 `[2]` | `compressed-tensors` |
//!
//! Read is every one of them by [`stored`], written by [`Quantiser`].

mod float8;
mod fp8;
mod int4;
mod method;
mod packing;
mod quantiser;
mod rows;
mod stored;

pub(crate) use method::Method;
pub use quantiser::{QuantisedForm, Quantiser};
pub(crate) use stored::{Part, QuantisedWeight, find};
