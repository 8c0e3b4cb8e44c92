//! Policy objectives, per row.

use slime_config::Algorithm;
use tch::Tensor;

use super::Sequences;
use crate::Result;

/// Clipping bounds of the ratio policy / old policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// The ratio is clipped to `1 - low` below.
    pub low: f64,
    /// The ratio is clipped to `1 + high` above.
    pub high: f64,
    /// Dual clip: with a negative advantage A the loss is at most `-dual * A`; above 1.
    pub dual: Option<f64>,
}

impl From<&Algorithm> for Clip {
    fn from(algorithm: &Algorithm) -> Self {
        let high = algorithm.eps_clip_high.unwrap_or(algorithm.eps_clip);
        Self { low: algorithm.eps_clip, high, dual: algorithm.eps_clip_c }
    }
}

/// What an objective says about each row `[r]`.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The loss, with gradient.
    pub loss_r: Tensor,
    /// 1 where clipping changed the loss.
    pub clipped_r: Tensor,
}

/// max(-ratio A, -clip(ratio) A) with ratio = `exp(log_ratio_r)` (PPO, arXiv 1707.06347, equation 7), and the dual clip
/// of arXiv 1912.09729, equation 5. `log_ratio_r` is `log_probs - old_log_probs`, or [`gspo_log_ratio`].
///
/// # Errors
/// The shapes differ.
pub fn ppo_clip(log_ratio_r: &Tensor, advantages_r: &Tensor, clip: Clip) -> Result<PolicyLoss> {
    let ratio_r = log_ratio_r.f_exp()?;
    let minus_a_r = advantages_r.f_neg()?;
    let plain_r = ratio_r.f_mul(&minus_a_r)?;
    let clipped_r = ratio_r.f_clamp(1.0 - clip.low, 1.0 + clip.high)?.f_mul(&minus_a_r)?;
    let is_clipped_r = clipped_r.f_gt_tensor(&plain_r)?.f_to_kind(log_ratio_r.kind())?;
    let mut loss_r = plain_r.f_maximum(&clipped_r)?;
    if let Some(dual) = clip.dual {
        let bounded_r = loss_r.f_minimum(&minus_a_r.f_mul_scalar(dual)?)?;
        loss_r = bounded_r.f_where_self(&advantages_r.f_lt(0.0)?, &loss_r)?;
    }
    Ok(PolicyLoss { loss_r, clipped_r: is_clipped_r })
}

/// GSPO's log ratio (arXiv 2507.18071, equation 7): for every row the mean of `log_probs - old_log_probs` over the
/// trained tokens of its sequence, with gradient through all of them; the denominator is their number.
///
/// # Errors
/// The shapes differ.
pub fn gspo_log_ratio(
    log_probs_r: &Tensor,
    old_log_probs_r: &Tensor,
    sequences: &Sequences,
) -> Result<Tensor> {
    sequences.spread(&sequences.mean(&log_probs_r.f_sub(old_log_probs_r)?)?)
}

/// -clip(ratio) A `log_probs` with no gradient through the clipped ratio (CISPO, arXiv 2506.13585, equation 4); a row is
/// clipped where the ratio was.
///
/// # Errors
/// The shapes differ.
pub fn cispo(
    log_probs_r: &Tensor,
    old_log_probs_r: &Tensor,
    advantages_r: &Tensor,
    clip: Clip,
) -> Result<PolicyLoss> {
    let ratio_r = log_probs_r.f_sub(old_log_probs_r)?.f_detach()?.f_exp()?;
    let weight_r = ratio_r.f_clamp(1.0 - clip.low, 1.0 + clip.high)?;
    let clipped_r = weight_r.f_ne_tensor(&ratio_r)?.f_to_kind(log_probs_r.kind())?;
    let loss_r = weight_r.f_mul(advantages_r)?.f_mul(log_probs_r)?.f_neg()?;
    Ok(PolicyLoss { loss_r, clipped_r })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn gradient_vanishes_where_the_ratio_is_clipped() {
        let new = Tensor::from_slice(&[1.0f64, -1.0, 0.1]).set_requires_grad(true);
        let advantages = Tensor::from_slice(&[1.0f64, -1.0, 2.0]);
        let clip = Clip { low: 0.2, high: 0.2, dual: None };
        ppo_clip(&new, &advantages, clip).unwrap().loss_r.sum(Kind::Double).backward();
        let grad = Vec::<f64>::try_from(new.grad()).unwrap();
        assert_eq!(grad[..2], [0.0, 0.0]);
        assert!((grad[2] + 2.0 * 0.1f64.exp()).abs() < 1e-12);
    }
}
