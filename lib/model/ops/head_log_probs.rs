//! Log-probs and entropy of target tokens under the output head, in chunks of rows.
//!
//! Suffixes: r rows (tokens whose next token is a target), d hidden size, v vocabulary.

use slime_torch::{CustomFunction, Forward, custom_function};
use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

/// Logits held at once, in elements: 16 MB of f32, so a chunk mostly stays in a CPU's caches.
const CHUNK_ELEMENTS: i64 = 4 << 20;
/// The same on a GPU, where a chunk has to be large enough to keep it busy: 512 MB of f32.
const DEVICE_CHUNK_ELEMENTS: i64 = 128 << 20;

/// `(log_probs_r, entropy_r)` of `targets_r` (i64) under `softmax(hidden_rd W_vd^T / temperature)`, in f32 or f64.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    temperature: f64,
) -> Result<(Tensor, Tensor)> {
    let log_softmax_rv = logits(hidden_rd, weight_vd, temperature)?.f_log_softmax(-1, None)?;
    let log_probs_r = log_softmax_rv.f_gather(1, &targets_r.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
    let entropy_r =
        log_softmax_rv.f_exp()?.f_mul(&log_softmax_rv)?.f_sum_dim_intlist(-1, false, None)?.f_neg()?;
    Ok((log_probs_r, entropy_r))
}

/// The same numbers and gradients as [`reference`], chunk by chunk: backward computes the logits again, so neither
/// they nor their gradient ever exist for all rows. The gradient of the weight is summed in f32 or f64.
///
/// # Errors
/// The shapes do not fit.
pub fn train(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    temperature: f64,
) -> Result<(Tensor, Tensor)> {
    let outputs = custom_function(&[hidden_rd, weight_vd, targets_r], Chunked { temperature })?;
    match outputs.as_slice() {
        [log_probs_r, entropy_r] => Ok((log_probs_r.shallow_clone(), entropy_r.shallow_clone())),
        _ => Err(Error::Context { what: "outputs of the head", expected: 2, got: outputs.len() }),
    }
}

struct Chunked {
    temperature: f64,
}

impl CustomFunction for Chunked {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        let [hidden_rd, weight_vd, targets_r] = inputs else {
            return Err("the head takes hidden states, weight and targets".to_owned());
        };
        let (log_probs_r, entropy_r, lse_r) =
            chunked_forward(hidden_rd, weight_vd, targets_r, self.temperature).map_err(|e| e.to_string())?;
        let saved = [hidden_rd, weight_vd, targets_r, &lse_r, &entropy_r].map(Tensor::shallow_clone).into();
        Ok(Forward { outputs: vec![log_probs_r, entropy_r], saved })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let ([hidden_rd, weight_vd, targets_r, lse_r, entropy_r], [grad_log_probs_r, grad_entropy_r]) =
            (saved, grads)
        else {
            return Err("the head saves five tensors and has two outputs".to_owned());
        };
        let grads = Grads { log_probs_r: grad_log_probs_r.as_ref(), entropy_r: grad_entropy_r.as_ref() };
        let (hidden, weight) =
            chunked_backward(hidden_rd, weight_vd, targets_r, (lse_r, entropy_r), &grads, self.temperature)
                .map_err(|e| e.to_string())?;
        Ok(vec![Some(hidden), Some(weight), None])
    }
}

struct Grads<'a> {
    log_probs_r: Option<&'a Tensor>,
    entropy_r: Option<&'a Tensor>,
}

/// The logits `[r, v]` over the temperature, in f32 or f64.
fn logits(hidden_rd: &Tensor, weight_vd: &Tensor, temperature: f64) -> Result<Tensor> {
    let logits_rv = product(hidden_rd, weight_vd)?;
    Ok(if (temperature - 1.0).abs() < f64::EPSILON {
        logits_rv
    } else {
        logits_rv.f_div_scalar(temperature)?
    })
}

/// `hidden_rd W_vd^T` in f32 or f64. Logits of bf16 factors that were rounded to bf16 would be off by a hundredth and more:
/// where the product can give its sums in f32, it does.
///
/// # Errors
/// The shapes do not fit.
pub fn product(hidden_rd: &Tensor, weight_vd: &Tensor) -> Result<Tensor> {
    if hidden_rd.kind() == Kind::BFloat16 && hidden_rd.device().is_cuda() {
        return Ok(hidden_rd.f_mm_dtype(&weight_vd.f_tr()?, Kind::Float)?);
    }
    Ok(hidden_rd.f_linear(weight_vd, None::<&Tensor>)?.f_to_kind(wide(hidden_rd.kind()))?)
}

fn wide(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// First row and number of rows of every chunk.
fn chunks(num_rows: i64, vocab: i64, device: Device) -> impl Iterator<Item = (i64, i64)> {
    let elements = if device == Device::Cpu { CHUNK_ELEMENTS } else { DEVICE_CHUNK_ELEMENTS };
    let len = (elements / vocab).max(1);
    (0..num_rows).step_by(len as usize).map(move |start| (start, len.min(num_rows - start)))
}

/// Log-probs, entropy and log-sum-exp, each `[r]`.
fn chunked_forward(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    temperature: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (num_rows, vocab) = (hidden_rd.size2()?.0, weight_vd.size2()?.0);
    let empty = || Tensor::f_zeros(num_rows, (wide(hidden_rd.kind()), hidden_rd.device()));
    let (log_probs_r, entropy_r, lse_r) = (empty()?, empty()?, empty()?);
    for (start, len) in chunks(num_rows, vocab, hidden_rd.device()) {
        let rows = |x: &Tensor| x.f_narrow(0, start, len);
        let mut logits_rv = logits(&rows(hidden_rd)?, weight_vd, temperature)?;
        let picked = logits_rv.f_gather(1, &rows(targets_r)?.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
        let max = logits_rv.f_amax(-1, true)?;
        let shifted = logits_rv.f_sub_(&max)?;
        let exp = shifted.f_exp()?;
        let sum = exp.f_sum_dim_intlist(-1, false, None)?;
        // H = log(sum e^s) - sum(s e^s) / sum(e^s) with s = logit - max.
        let weighted = exp.f_mul(&shifted)?.f_sum_dim_intlist(-1, false, None)?;
        let log_sum = sum.f_log()?;
        let lse = log_sum.f_add(&max.f_squeeze_dim(1)?)?;
        rows(&log_probs_r)?.f_copy_(&picked.f_sub(&lse)?)?;
        rows(&entropy_r)?.f_copy_(&log_sum.f_sub(&weighted.f_div(&sum)?)?)?;
        rows(&lse_r)?.f_copy_(&lse)?;
    }
    Ok((log_probs_r, entropy_r, lse_r))
}

/// Gradients of the hidden states and of the weight.
fn chunked_backward(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    (lse_r, entropy_r): (&Tensor, &Tensor),
    grads: &Grads<'_>,
    temperature: f64,
) -> Result<(Tensor, Tensor)> {
    let (num_rows, vocab) = (hidden_rd.size2()?.0, weight_vd.size2()?.0);
    let kind = wide(hidden_rd.kind());
    let grad_hidden_rd = hidden_rd.f_zeros_like()?;
    let mut grad_weight_vd = Tensor::f_zeros(weight_vd.size(), (kind, weight_vd.device()))?;
    for (start, len) in chunks(num_rows, vocab, hidden_rd.device()) {
        let column = |x: &Tensor| x.f_narrow(0, start, len)?.f_unsqueeze(1);
        let hidden = hidden_rd.f_narrow(0, start, len)?;
        let mut log_softmax_rv = logits(&hidden, weight_vd, temperature)?.f_sub_(&column(lse_r)?)?;
        let probs_rv = log_softmax_rv.f_exp()?;
        // d entropy / d logit = -p (log p + H); d log_prob / d logit = [target] - p.
        let mut grad_rv = match grads.entropy_r {
            Some(grad) => {
                let mut slope =
                    log_softmax_rv.f_add_(&column(entropy_r)?)?.f_mul_(&column(&grad.f_neg()?)?)?;
                if let Some(grad) = grads.log_probs_r {
                    slope = slope.f_sub_(&column(grad)?)?;
                }
                slope.f_mul_(&probs_rv)?
            }
            None => match grads.log_probs_r {
                Some(grad) => probs_rv.shallow_clone().f_mul_(&column(&grad.f_neg()?)?)?,
                None => return Ok((grad_hidden_rd, grad_weight_vd.f_to_kind(weight_vd.kind())?)),
            },
        };
        if let Some(grad) = grads.log_probs_r {
            let _ = grad_rv.f_scatter_add_(1, &column(targets_r)?, &column(grad)?)?;
        }
        if (temperature - 1.0).abs() >= f64::EPSILON {
            let _ = grad_rv.f_div_scalar_(temperature)?;
        }
        let grad_rv = grad_rv.f_to_kind(weight_vd.kind())?;
        grad_hidden_rd.f_narrow(0, start, len)?.f_copy_(&grad_rv.f_matmul(weight_vd)?)?;
        let transposed_vr = grad_rv.f_transpose(0, 1)?;
        if kind == weight_vd.kind() {
            let _ = grad_weight_vd.f_addmm_(&transposed_vr, &hidden)?;
        } else {
            let _ = grad_weight_vd.f_add_(&transposed_vr.f_matmul(&hidden)?)?;
        }
    }
    Ok((grad_hidden_rd, grad_weight_vd.f_to_kind(weight_vd.kind())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hidden rows, weight and the factors of both outputs. Drawn once for all that are compared: the generator is one
    /// for the whole process, and other tests draw from it too.
    fn inputs(num_rows: i64, vocab: i64) -> [Tensor; 3] {
        let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Double, Device::Cpu));
        [random([num_rows, 3]), random([vocab, 3]), random([num_rows, 2])]
    }

    /// Outputs and gradients of a mixture of both outputs.
    fn run(
        op: impl Fn(&Tensor, &Tensor, &Tensor, f64) -> Result<(Tensor, Tensor)>,
        [hidden, weight, factor]: &[Tensor; 3],
        with_entropy: bool,
    ) -> Vec<Tensor> {
        let hidden = hidden.copy().set_requires_grad(true);
        let weight = weight.copy().set_requires_grad(true);
        let targets =
            Tensor::arange(hidden.size()[0], (Kind::Int64, Device::Cpu)).remainder(weight.size()[0]);
        let (log_probs, entropy) = op(&hidden, &weight, &targets, 0.7).unwrap();
        let mut loss = (&log_probs * factor.select(1, 0)).sum(None);
        if with_entropy {
            loss += (&entropy * factor.select(1, 1)).sum(None);
        }
        loss.backward();
        vec![log_probs.detach(), entropy.detach(), hidden.grad(), weight.grad()]
    }

    #[test]
    fn train_equals_reference_over_several_chunks() {
        let inputs = inputs(7, CHUNK_ELEMENTS / 3);
        for with_entropy in [false, true] {
            let (got, want) = (run(train, &inputs, with_entropy), run(reference, &inputs, with_entropy));
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs().max().double_value(&[]) < 1e-9, "with entropy: {with_entropy}");
            }
        }
    }

    #[test]
    fn no_rows_give_no_numbers_and_zero_gradients() {
        let outputs = run(train, &inputs(0, 5), true);
        assert_eq!(outputs[0].size(), [0]);
        assert!(outputs[3].abs().max().double_value(&[]) == 0.0);
    }
}
