//! Corrections of samples that were drawn from another distribution than the one that is trained.
//!
//! All ratios are of training to generation, `exp(log_probs - rollout_log_probs)`, without gradient. What is rejected
//! leaves the sums and not their denominators: the loss gets smaller, it is not averaged over what was kept.

use slime_config::{Correction, CorrectionWeight, RatioLevel};
use tch::Tensor;

use super::Sequences;
use crate::Result;

/// Log ratios are clamped to this much in nats before they are exponentiated, as in slime's and verl's modules.
const LOG_BOUND: f64 = 20.0;

/// A correction of each row `[r]`.
#[derive(Debug)]
pub struct Corrected {
    /// The weight of the loss before bounding.
    pub ratio_r: Tensor,
    /// The weight of the loss; 1 where none is configured.
    pub weight_r: Tensor,
    /// 1 where the weight is not the ratio.
    pub bounded_r: Tensor,
    /// 1 where the row is kept, 0 where it is rejected.
    pub keep_r: Tensor,
}

/// The ratio of training to generation at `level`, the same for all rows of a sequence where that is its level:
/// `exp(d_t)`, `exp(sum d)` or `exp(sum d / n)` with d the log ratio of a trained token and n their number.
///
/// # Errors
/// The shapes differ.
pub fn ratio(
    log_probs_r: &Tensor,
    rollout_log_probs_r: &Tensor,
    level: RatioLevel,
    sequences: &Sequences,
) -> Result<Tensor> {
    let d_r = log_probs_r.f_detach()?.f_sub(rollout_log_probs_r)?;
    let exponent_r = match level {
        RatioLevel::Token => d_r,
        RatioLevel::Sequence => sequences.spread(&sequences.sum(&d_r)?)?,
        RatioLevel::Geometric => sequences.spread(&sequences.mean(&d_r)?)?,
    };
    Ok(exponent_r.f_clamp(-LOG_BOUND, LOG_BOUND)?.f_exp()?)
}

/// Weights and rejections of `[algorithm.correction]`: truncated importance sampling (arXiv 1802.01561; slime,
/// `vanilla_tis_function`), `IcePop` (arXiv 2510.18855; slime, `icepop_function`), their sequence forms, rejection and
/// veto (slime, `mis.py`). Unbounded weights beside recomputed old log-probs are decoupled PPO (arXiv 2110.00641). The weight of `normalize` is divided by `mean_weight`, the mean over the trained tokens of the global
/// batch (for ratios of sequences: over its samples).
///
/// # Errors
/// The shapes differ.
pub fn correct(
    log_probs_r: &Tensor,
    rollout_log_probs_r: &Tensor,
    correction: &Correction,
    mean_weight: f64,
    sequences: &Sequences,
) -> Result<Corrected> {
    let ratio_of = |level| ratio(log_probs_r, rollout_log_probs_r, level, sequences);
    let ratio_r = ratio_of(correction.level)?;
    let high = correction.high.unwrap_or(f64::INFINITY);
    let low = correction.low.unwrap_or(1.0 / high);
    let kind = ratio_r.kind();
    let bounded_r = match correction.weight {
        CorrectionWeight::None => ratio_r.f_ones_like()?,
        CorrectionWeight::Truncate => ratio_r.f_clamp_max(high)?,
        CorrectionWeight::Clip => ratio_r.f_clamp(low, high)?,
        CorrectionWeight::Mask => ratio_r.f_mul(&within(&ratio_r, low, high)?)?,
    };
    let is_bounded_r = match correction.weight {
        CorrectionWeight::None => ratio_r.f_zeros_like()?,
        _ => bounded_r.f_ne_tensor(&ratio_r)?.f_to_kind(kind)?,
    };
    let weight_r = bounded_r.f_div_scalar(mean_weight)?;
    let mut keep_r = ratio_r.f_ones_like()?;
    if let Some(level) = correction.reject {
        let high = correction.reject_high.unwrap_or(f64::INFINITY);
        let low = correction.reject_low.unwrap_or(1.0 / high);
        keep_r = within(&ratio_of(level)?, low, high)?;
    }
    if let Some(least) = correction.veto {
        let token_r = ratio_of(RatioLevel::Token)?;
        let vetoes_r = token_r.f_lt(least)?.f_to_kind(kind)?;
        let vetoed_r = sequences.spread(&sequences.sum(&vetoes_r)?)?;
        keep_r = keep_r.f_mul(&vetoed_r.f_eq(0.0)?.f_to_kind(kind)?)?;
    }
    Ok(Corrected { ratio_r, weight_r, bounded_r: is_bounded_r, keep_r })
}

/// Off-policy sequence masking (`DeepSeek-V3.2`, arXiv 2512.02556, section 3.1; slime, `compute_opsm_mask`): 0 for rows
/// of negative advantage in sequences whose mean of `old_log_probs - log_probs` over the trained tokens exceeds
/// `delta`, else 1.
///
/// # Errors
/// The shapes differ.
pub fn off_policy_keep(
    log_probs_r: &Tensor,
    old_log_probs_r: &Tensor,
    advantages_r: &Tensor,
    delta: f64,
    sequences: &Sequences,
) -> Result<Tensor> {
    let moved_r = old_log_probs_r.f_sub(&log_probs_r.f_detach()?)?;
    let far_r = sequences.spread(&sequences.mean(&moved_r)?)?.f_gt(delta)?;
    let drop_r = far_r.f_logical_and(&advantages_r.f_lt(0.0)?)?;
    Ok(drop_r.f_logical_not()?.f_to_kind(advantages_r.kind())?)
}

fn within(ratio_r: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    let inside_r = ratio_r.f_ge(low)?.f_logical_and(&ratio_r.f_le(high)?)?;
    Ok(inside_r.f_to_kind(ratio_r.kind())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;
    use crate::golden::close;
    use tch::{Device, Kind};

    fn list(x: &Tensor) -> Vec<f32> {
        Vec::try_from(x.to_kind(Kind::Float)).unwrap()
    }

    fn two_sequences() -> (Sequences, Tensor, Tensor) {
        let places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)].map(|(sample, token)| Place { sample, token });
        let sequences = Sequences::new(&places, Kind::Double, Device::Cpu).unwrap();
        let ratios = [2.0f64, 0.25, 1.0, 4.0, 0.5];
        let rollout = Tensor::from_slice(&[-1.0f64, -2.0, -0.5, -3.0, -1.5]);
        (sequences, &rollout + Tensor::from_slice(&ratios.map(f64::ln)), rollout)
    }

    #[test]
    fn vectors_of_the_reference() {
        let train = Tensor::from_slice(&[-1.0f64, -2.0, -0.1]);
        let rollout = Tensor::from_slice(&[-1.2f64, -1.0, -2.0]);
        let places = [0, 1, 2].map(|token| Place { sample: 0, token });
        let sequences = Sequences::new(&places, Kind::Double, Device::Cpu).unwrap();
        let weights = |weight, low, high| {
            let correction = Correction { weight, low, high, ..Correction::default() };
            list(&correct(&train, &rollout, &correction, 1.0, &sequences).unwrap().weight_r)
        };
        close(&weights(CorrectionWeight::Truncate, None, Some(2.0)), &[1.221_402_8, 0.367_879_4, 2.0]);
        close(&weights(CorrectionWeight::Clip, Some(0.5), Some(2.0)), &[1.221_402_8, 0.5, 2.0]);
        close(&weights(CorrectionWeight::Mask, Some(0.5), Some(2.0)), &[1.221_402_8, 0.0, 0.0]);
        close(&weights(CorrectionWeight::Truncate, None, None), &[1.221_402_8, 0.367_879_4, 6.685_894_4]);
    }

    #[test]
    fn levels_are_product_and_geometric_mean_of_a_sequence() {
        let (sequences, train, rollout) = two_sequences();
        let of = |level| list(&ratio(&train, &rollout, level, &sequences).unwrap());
        close(&of(RatioLevel::Token), &[2.0, 0.25, 1.0, 4.0, 0.5]);
        close(&of(RatioLevel::Sequence), &[0.5, 0.5, 2.0, 2.0, 2.0]);
        let (a, b) = (0.5f32.sqrt(), 2f32.cbrt());
        close(&of(RatioLevel::Geometric), &[a, a, b, b, b]);
        let far = &rollout - 100.0;
        close(&list(&ratio(&rollout, &far, RatioLevel::Token, &sequences).unwrap()), &[20f32.exp(); 5]);
    }

    #[test]
    fn rejection_and_veto_drop_tokens_or_whole_sequences() {
        let (sequences, train, rollout) = two_sequences();
        let keep = |correction: &Correction| {
            list(&correct(&train, &rollout, correction, 1.0, &sequences).unwrap().keep_r)
        };
        let reject = |level| Correction {
            reject: Some(level),
            reject_high: Some(1.9),
            reject_low: Some(0.45),
            ..Correction::default()
        };
        assert_eq!(keep(&reject(RatioLevel::Token)), [0.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!(keep(&reject(RatioLevel::Sequence)), [1.0, 1.0, 0.0, 0.0, 0.0]);
        let veto = Correction { veto: Some(0.3), ..Correction::default() };
        assert_eq!(keep(&veto), [0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(keep(&Correction::default()), [1.0; 5]);
    }

    #[test]
    fn normalised_weights_are_divided_by_their_mean() {
        let (sequences, train, rollout) = two_sequences();
        let correction =
            Correction { weight: CorrectionWeight::Truncate, high: Some(2.0), ..Correction::default() };
        let got = correct(&train, &rollout, &correction, 0.5, &sequences).unwrap();
        close(&list(&got.weight_r), &[4.0, 0.5, 2.0, 4.0, 1.0]);
        close(&list(&got.bounded_r), &[0.0, 0.0, 0.0, 1.0, 0.0]);
    }
}
