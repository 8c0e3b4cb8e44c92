//! Losses of pairs `[p]`: which of two answers is the better one.

use tch::Tensor;

use crate::Result;

/// What a loss says about each pair.
#[derive(Debug)]
pub struct PairLoss {
    /// The loss, with gradient.
    pub loss_p: Tensor,
    /// What the loss takes for the reward of the better answer.
    pub chosen_p: Tensor,
    /// The same of the worse one.
    pub rejected_p: Tensor,
}

/// DPO (arXiv 2305.18290, equation 7): -log sigmoid(m) with m = `beta * (chosen - rejected)` of the log ratios policy /
/// reference, each summed over an answer's trained tokens; with `label_smoothing` e the conservative form
/// `-(1 - e) log sigmoid(m) - e log sigmoid(-m)`. The reward of an answer is `beta` times its log ratio.
///
/// # Errors
/// The shapes differ.
pub fn dpo_loss(
    chosen_log_ratio_p: &Tensor,
    rejected_log_ratio_p: &Tensor,
    beta: f64,
    label_smoothing: f64,
) -> Result<PairLoss> {
    let chosen_p = chosen_log_ratio_p.f_mul_scalar(beta)?;
    let rejected_p = rejected_log_ratio_p.f_mul_scalar(beta)?;
    let margin_p = chosen_p.f_sub(&rejected_p)?;
    let mut loss_p = margin_p.f_log_sigmoid()?.f_mul_scalar(label_smoothing - 1.0)?;
    if label_smoothing != 0.0 {
        let other_p = margin_p.f_neg()?.f_log_sigmoid()?.f_mul_scalar(label_smoothing)?;
        loss_p = loss_p.f_sub(&other_p)?;
    }
    Ok(PairLoss { loss_p, chosen_p: chosen_p.f_detach()?, rejected_p: rejected_p.f_detach()? })
}

/// Bradley-Terry (arXiv 2203.02155, equation 1): -log sigmoid(chosen - rejected - margin) of the scores of two answers;
/// `margin_p` is 0 where nothing is known (arXiv 2307.09288, equation 2).
///
/// # Errors
/// The shapes differ.
pub fn bradley_terry_loss(chosen_p: &Tensor, rejected_p: &Tensor, margin_p: &Tensor) -> Result<PairLoss> {
    let loss_p = chosen_p.f_sub(rejected_p)?.f_sub(margin_p)?.f_log_sigmoid()?.f_neg()?;
    Ok(PairLoss { loss_p, chosen_p: chosen_p.f_detach()?, rejected_p: rejected_p.f_detach()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(x: &Tensor) -> Vec<f64> {
        Vec::try_from(x).unwrap()
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn pairs_lose_by_how_wrong_they_are() {
        let (chosen, rejected) = (Tensor::from_slice(&[1.0, -2.0]), Tensor::from_slice(&[0.5, 1.0]));
        let got = dpo_loss(&chosen, &rejected, 0.2, 0.0).unwrap();
        for (got, margin) in list(&got.loss_p).into_iter().zip([0.1, -0.6]) {
            assert!((got + sigmoid(margin).ln()).abs() < 1e-12);
        }
        assert_eq!(list(&got.chosen_p), [0.2, -0.4]);
        let smoothed = dpo_loss(&chosen, &rejected, 0.2, 0.1).unwrap();
        let expected = -0.9 * sigmoid(0.1).ln() - 0.1 * sigmoid(-0.1).ln();
        assert!((list(&smoothed.loss_p)[0] - expected).abs() < 1e-12);
        let scores = bradley_terry_loss(&chosen, &rejected, &Tensor::from_slice(&[0.25, 0.0])).unwrap();
        for (got, margin) in list(&scores.loss_p).into_iter().zip([0.25, -3.0]) {
            assert!((got + sigmoid(margin).ln()).abs() < 1e-12);
        }
    }
}
