//! The clipped policy objective of PPO, per token.

use slime_config::Algorithm;
use tch::Tensor;

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

/// What the objective says about each token `[r]`.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The loss, with gradient.
    pub loss_r: Tensor,
    /// 1 where the clipped branch was the larger one.
    pub clipped_r: Tensor,
}

/// max(-ratio A, -clip(ratio) A) with ratio = `exp(log_probs - old_log_probs)` (PPO, arXiv 1707.06347, equation 7), and
/// the dual clip of arXiv 1912.09729, equation 5. No reduction: see [`crate::loss_reducer`] for the denominator.
///
/// # Errors
/// The shapes differ.
pub fn policy_loss(
    log_probs_r: &Tensor,
    old_log_probs_r: &Tensor,
    advantages_r: &Tensor,
    clip: Clip,
) -> Result<PolicyLoss> {
    let ratio_r = log_probs_r.f_sub(old_log_probs_r)?.f_exp()?;
    let minus_a_r = advantages_r.f_neg()?;
    let plain_r = ratio_r.f_mul(&minus_a_r)?;
    let clipped_r = ratio_r.f_clamp(1.0 - clip.low, 1.0 + clip.high)?.f_mul(&minus_a_r)?;
    let is_clipped_r = clipped_r.f_gt_tensor(&plain_r)?.f_to_kind(log_probs_r.kind())?;
    let mut loss_r = plain_r.f_maximum(&clipped_r)?;
    if let Some(dual) = clip.dual {
        let bounded_r = loss_r.f_minimum(&minus_a_r.f_mul_scalar(dual)?)?;
        loss_r = bounded_r.f_where_self(&advantages_r.f_lt(0.0)?, &loss_r)?;
    }
    Ok(PolicyLoss { loss_r, clipped_r: is_clipped_r })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{cases, close, floats};

    #[test]
    fn golden_vectors_of_the_clipped_loss() {
        let mut checked = 0;
        for case in cases("policy_loss") {
            let params = &case["params"];
            let clip = Clip {
                low: params["eps_clip"].as_f64().unwrap(),
                high: params["eps_clip_high"].as_f64().unwrap(),
                dual: params["eps_clip_c"].as_f64(),
            };
            // The public implementation takes old - new; with new = 0 that is the old log-prob.
            let old = Tensor::from_slice(&floats(&case["input"]["ppo_kl"]));
            let advantages = Tensor::from_slice(&floats(&case["input"]["advantages"]));
            let result = policy_loss(&old.zeros_like(), &old, &advantages, clip).unwrap();
            close(&Vec::<f32>::try_from(result.loss_r).unwrap(), &floats(&case["output"]["loss"]));
            close(&Vec::<f32>::try_from(result.clipped_r).unwrap(), &floats(&case["output"]["clipped"]));
            checked += 1;
        }
        assert_eq!(checked, 6);
    }

    #[test]
    fn gradient_vanishes_where_the_ratio_is_clipped() {
        let new = Tensor::from_slice(&[1.0f64, -1.0, 0.1]).set_requires_grad(true);
        let advantages = Tensor::from_slice(&[1.0f64, -1.0, 2.0]);
        let clip = Clip { low: 0.2, high: 0.2, dual: None };
        let loss = policy_loss(&new, &new.zeros_like(), &advantages, clip).unwrap();
        loss.loss_r.sum(tch::Kind::Double).backward();
        let grad = Vec::<f64>::try_from(new.grad()).unwrap();
        assert_eq!(grad[..2], [0.0, 0.0]);
        assert!((grad[2] + 2.0 * 0.1f64.exp()).abs() < 1e-12);
    }
}
