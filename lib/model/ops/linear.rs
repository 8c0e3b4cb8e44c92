//! `x W^T + b`. Suffixes: t tokens, i inputs, o outputs.

use tch::Tensor;

use crate::Result;

/// `x_ti W_oi^T + b_o`, `[t, o]`.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(x_ti: &Tensor, weight_oi: &Tensor, bias_o: Option<&Tensor>) -> Result<Tensor> {
    Ok(x_ti.f_linear(weight_oi, bias_o)?)
}
