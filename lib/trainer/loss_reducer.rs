//! From per-token losses to one number: the coefficient of every token, so the loss is a plain weighted sum.
//!
//! Coefficients depend on the global batch only, so micro-batches and ranks add up to the same loss in any layout.

use slime_config::LossReducer;

/// What the reducer needs of one sample of the global batch.
#[derive(Debug, Clone, Copy)]
pub struct Weighted<'a> {
    /// 1 for each trained response token.
    pub loss_mask: &'a [u8],
    /// The sample's weight: samples of one episode share it.
    pub weight: f32,
}

/// The coefficient of a trained token, one for each sample; masked tokens have 0.
///
/// With w the weight and n the trained tokens of a sample, the denominators over the global batch are
/// - `sample_mean`: a token of sample i counts `w_i / (n_i * sum_j w_j)`; a sample with n = 0 still counts in the sum;
/// - `token_mean`: a token of sample i counts `w_i / (sum_j w_j * n_j)`.
pub fn coefficients(samples: &[Weighted], reducer: LossReducer) -> Vec<f64> {
    let trained: Vec<f64> =
        samples.iter().map(|s| s.loss_mask.iter().filter(|m| **m != 0).count() as f64).collect();
    let weighted = |i: usize| f64::from(samples[i].weight);
    let denominator: f64 = match reducer {
        LossReducer::SampleMean => (0..samples.len()).map(weighted).sum(),
        LossReducer::TokenMean => (0..samples.len()).map(|i| weighted(i) * trained[i]).sum(),
    };
    (0..samples.len())
        .map(|i| match reducer {
            _ if trained[i] == 0.0 || denominator == 0.0 => 0.0,
            LossReducer::SampleMean => weighted(i) / (trained[i] * denominator),
            LossReducer::TokenMean => weighted(i) / denominator,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [Weighted<'static>; 3] = [
        Weighted { loss_mask: &[1, 1, 0, 1, 1], weight: 1.0 },
        Weighted { loss_mask: &[1], weight: 0.5 },
        Weighted { loss_mask: &[0, 0], weight: 0.5 },
    ];

    #[test]
    fn sample_mean_divides_by_tokens_and_by_all_weights() {
        assert_eq!(coefficients(&SAMPLES, LossReducer::SampleMean), [1.0 / 8.0, 0.25, 0.0]);
    }

    #[test]
    fn token_mean_divides_by_all_weighted_tokens() {
        assert_eq!(coefficients(&SAMPLES, LossReducer::TokenMean), [1.0 / 4.5, 0.5 / 4.5, 0.0]);
    }

    #[test]
    fn nothing_trained_gives_zeros() {
        assert_eq!(coefficients(&SAMPLES[2..], LossReducer::TokenMean), [0.0]);
    }
}
