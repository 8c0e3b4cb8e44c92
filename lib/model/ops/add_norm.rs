//! The residual add and the RMS norm that follows it. Suffixes: t tokens, d hidden size.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use slime_kernel::train_norm::{self, Normed};
use slime_torch::simd::Kernel;
use slime_torch::{CustomFunction, Forward, custom_function, floats, floats_mut, rows_of};
use tch::{Kind, Tensor};

use super::{can_serve, can_serve_on_gpu, dot, each_row};
use crate::{Error, Result, Workspace};

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
    } else if slime_kernel::train_norm::is_supported(x_td.kind(), x_td.size2()?.1, x_td.device()) {
        train(x_td, delta_td, weight_d, eps)
    } else {
        reference(x_td, delta_td, weight_d, eps)
    }
}

/// [`reference`] in one pass over memory on a GPU, with a gradient of its own, of which the sum and a number for each row are
/// kept.
///
/// # Errors
/// The shapes do not fit.
pub fn train(
    x_td: Tensor,
    delta_td: Option<&Tensor>,
    weight_d: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let inputs: Vec<&Tensor> = [&x_td, weight_d].into_iter().chain(delta_td).collect();
    let mut outputs = custom_function(&inputs, Train { eps })?.into_iter();
    match (outputs.next(), outputs.next()) {
        (Some(normed_td), None) => Ok((x_td, normed_td)),
        (Some(normed_td), Some(sum_td)) => Ok((sum_td, normed_td)),
        _ => Err(Error::Context { what: "outputs of add and norm", expected: 1, got: 0 }),
    }
}

struct Train {
    eps: f64,
}

impl Train {
    fn outputs(&self, inputs: &[Tensor]) -> Result<Forward> {
        let (x_td, weight_d, delta_td) = match inputs {
            [x_td, weight_d] => (x_td, weight_d, None),
            [x_td, weight_d, delta_td] => (x_td, weight_d, Some(delta_td.f_contiguous()?)),
            _ => {
                return Err(Error::Context {
                    what: "inputs of add and norm",
                    expected: 2,
                    got: inputs.len(),
                });
            }
        };
        let x_td = x_td.f_contiguous()?;
        let Normed { sum_td, out_td, scale_t } =
            train_norm::forward(&x_td, delta_td.as_ref(), weight_d, self.eps)?;
        let saved = [&sum_td, weight_d, &scale_t].map(Tensor::shallow_clone).into();
        // Without a delta the sum is an input, which is no output.
        let outputs = std::iter::once(out_td).chain(delta_td.map(|_| sum_td)).collect();
        Ok(Forward { outputs, saved })
    }

    fn gradients(saved: &[Tensor], grads: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let [sum_td, weight_d, scale_t] = saved else {
            return Err(Error::Context {
                what: "saved tensors of add and norm",
                expected: 3,
                got: saved.len(),
            });
        };
        let grad_sum_td = grads.get(1).and_then(Option::as_ref).map(Tensor::f_contiguous).transpose()?;
        let (grad_td, grad_d) = match grads.first().and_then(Option::as_ref) {
            None => (grad_sum_td, None),
            Some(grad_td) => {
                let kept = (sum_td, weight_d, scale_t);
                let (grad_td, grad_d) =
                    train_norm::backward(kept, &grad_td.f_contiguous()?, grad_sum_td.as_ref())?;
                (Some(grad_td), Some(grad_d))
            }
        };
        let of_delta = grad_td.as_ref().map(Tensor::shallow_clone);
        let mut all = vec![grad_td, grad_d];
        all.extend((grads.len() > 1).then_some(of_delta));
        Ok(all)
    }
}

impl CustomFunction for Train {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        self.outputs(inputs).map_err(|error| error.to_string())
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        Self::gradients(saved, grads).map_err(|error| error.to_string())
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
