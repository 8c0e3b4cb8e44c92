//! The residual add and the RMS norm that follows it. Suffixes: t tokens, d hidden size.

use tch::{Kind, Tensor};

use crate::Result;

/// `(x + delta, norm(x + delta) * weight)`, both `[t, d]`; without `delta` the residual stays as it is.
///
/// The mean of squares runs in f32 (f64 for f64), the result is cast before the weight is applied, as in
/// `LlamaRMSNorm` of `transformers`.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(
    x_td: Tensor,
    delta_td: Option<&Tensor>,
    weight_d: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let x_td = match delta_td {
        Some(delta_td) => x_td.f_add(delta_td)?,
        None => x_td,
    };
    let normed_td = rms_norm(&x_td, weight_d, eps)?;
    Ok((x_td, normed_td))
}

/// The RMS norm over the last dimension.
///
/// # Errors
/// The shapes do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let kind = x.kind();
    let wide = x.f_to_kind(if kind == Kind::Double { kind } else { Kind::Float })?;
    let scale = wide.f_square()?.f_mean_dim(-1, true, None)?.f_add_scalar(eps)?.f_rsqrt()?;
    Ok(wide.f_mul(&scale)?.f_to_kind(kind)?.f_mul(weight)?)
}
