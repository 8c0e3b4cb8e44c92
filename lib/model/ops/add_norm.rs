//! The residual add and the RMS norm that follows it. Suffixes: t tokens, d hidden size.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use slime_torch::simd::Kernel;
use slime_torch::{floats, floats_mut, rows_of};
use tch::{Kind, Tensor};

use super::{can_serve, can_serve_on_gpu, dot, each_row};
use crate::{Result, Workspace};

/// [`serve`] or the kernel of a GPU where the inputs allow it, else [`reference`].
///
/// # Errors
/// The shapes do not fit.
pub fn add_norm(
    workspace: &Workspace,
    x_td: Tensor,
    delta_td: Option<&Tensor>,
    weight_d: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    if can_serve([&x_td, delta_td.unwrap_or(&x_td), weight_d]) {
        serve(x_td, delta_td, weight_d, eps)
    } else if can_serve_on_gpu([&x_td, delta_td.unwrap_or(&x_td), weight_d])
        && x_td.is_contiguous()
        && slime_kernel::add_norm::is_supported(x_td.kind(), x_td.size2()?.1, x_td.device())
    {
        let normed_td = workspace.empty(&x_td.size(), (x_td.kind(), x_td.device()))?;
        slime_kernel::add_norm::serve(&x_td, delta_td, weight_d, &normed_td, eps)?;
        Ok((x_td, normed_td))
    } else {
        reference(x_td, delta_td, weight_d, eps)
    }
}

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

/// The same, adding into the memory of `x_td`.
///
/// # Errors
/// The shapes do not fit.
pub fn serve(
    mut x_td: Tensor,
    delta_td: Option<&Tensor>,
    weight_d: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    if let Some(delta_td) = delta_td {
        x_td = x_td.f_add_(delta_td)?;
    }
    let mut normed_td = x_td.f_empty_like()?;
    let width = x_td.size2()?.1 as usize;
    let (rows, weight) = (rows_of(&x_td)?, floats(weight_d)?);
    each_row(floats_mut(&mut normed_td)?, width, |at, out| Norm { row: rows.row(at), weight, eps, out });
    Ok((x_td, normed_td))
}

/// The RMS norm of one row, as in [`rms_norm`].
pub(super) struct Norm<'a> {
    pub row: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f64,
    pub out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    #[inline(always)]
    fn run(self) {
        let scale = rms_scale(self.row, self.eps);
        for ((out, x), weight) in self.out.iter_mut().zip(self.row).zip(self.weight) {
            *out = x * scale * weight;
        }
    }
}

/// What a row is multiplied by so that its mean of squares is 1.
#[inline(always)]
pub(super) fn rms_scale(row: &[f32], eps: f64) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + eps as f32).sqrt()
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
