//! The definition of log-probs and entropy, on any device, under autograd.

use tch::{Kind, Tensor};

use super::products::product;
use super::shaping::{Shaping, check_targets};
use super::wide;
use crate::Result;

/// `(log_probs_r, entropy_r)` of `targets_r` (i64) under the head `weight_vd`, in f32 or f64. The log-probs are those of the
/// shaped distribution, the entropy is that before truncation; see [`Shaping`].
///
/// # Errors
/// Shapes that do not fit, an id outside the vocabulary, a temperature that is none.
pub fn reference(
    hidden_rd: &Tensor,
    weight_vd: &Tensor,
    targets_r: &Tensor,
    shaping: &Shaping<'_>,
) -> Result<(Tensor, Tensor)> {
    let (num_rows, vocab) = (hidden_rd.size2()?.0, weight_vd.size2()?.0);
    shaping.check(num_rows as usize, vocab)?;
    check_targets(targets_r, num_rows as usize, vocab)?;
    let scaled_rv = scaled_logits(hidden_rd, weight_vd, shaping)?;
    let log_softmax_rv = scaled_rv.f_log_softmax(-1, None)?;
    let entropy_r =
        log_softmax_rv.f_exp()?.f_mul(&log_softmax_rv)?.f_sum_dim_intlist(-1, false, None)?.f_neg()?;
    let log_softmax_rv = match is_dropped(targets_r, vocab, shaping)? {
        Some(is_dropped_rv) => {
            scaled_rv.f_masked_fill(&is_dropped_rv, f64::NEG_INFINITY)?.f_log_softmax(-1, None)?
        }
        None => log_softmax_rv,
    };
    let log_probs_r = log_softmax_rv.f_gather(1, &targets_r.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
    Ok((log_probs_r, entropy_r))
}

/// The logits `[r, v]` with penalties, over the temperature.
fn scaled_logits(hidden_rd: &Tensor, weight_vd: &Tensor, shaping: &Shaping<'_>) -> Result<Tensor> {
    let mut logits_rv = product(hidden_rd, weight_vd)?;
    if let Some(penalties) = shaping.penalties {
        let options = (wide(logits_rv.kind()), logits_rv.device());
        let (above_rv, below_rv) = (logits_rv.f_ones_like()?, logits_rv.f_ones_like()?);
        let off_rv = Tensor::f_zeros(logits_rv.size(), options)?;
        for (row, seen) in penalties.entries(0..logits_rv.size2()?.0 as usize) {
            let ([above, below], off) = penalties.of(seen);
            for (tensor, value) in [(&above_rv, above), (&below_rv, below), (&off_rv, off)] {
                let _ = tensor.f_get(row)?.f_get(seen.id)?.f_fill_(value)?;
            }
        }
        let factor_rv = above_rv.f_where_self(&logits_rv.f_gt(0.0)?, &below_rv)?;
        logits_rv = logits_rv.f_mul(&factor_rv)?.f_sub(&off_rv)?;
    }
    Ok(logits_rv.f_div_scalar(shaping.temperature)?)
}

/// Which ids `[r, v]` were not kept.
fn is_dropped(targets_r: &Tensor, vocab: i64, shaping: &Shaping<'_>) -> Result<Option<Tensor>> {
    let Some(kept) = shaping.kept else { return Ok(None) };
    let targets = Vec::<i64>::try_from(targets_r)?;
    let is_dropped_r1 = Tensor::f_from_slice(kept.is_recorded())?.f_unsqueeze(1)?;
    let is_dropped_rv = is_dropped_r1.f_repeat([1, vocab])?.f_to_kind(Kind::Bool)?;
    for (row, id) in kept.entries(0..targets.len(), &targets) {
        let _ = is_dropped_rv.f_get(row)?.f_get(id)?.f_fill_(0)?;
    }
    Ok(Some(is_dropped_rv.f_to_device(targets_r.device())?))
}
