//! From per-token losses to one number: the coefficient of every token, so the loss is a plain weighted sum.
//!
//! Coefficients depend on the global batch only, so micro-batches and ranks add up to the same loss in any layout.

use std::collections::BTreeMap;

use slime_config::LossReducer;

/// What the reducer needs of one sample of the global batch.
#[derive(Debug, Clone, Copy)]
pub struct Weighted {
    /// Trained tokens.
    pub num_trained: usize,
    /// The sample's weight: samples of one episode share it.
    pub weight: f32,
    /// Which episode it belongs to (step, group, episode): samples of equal names are one.
    pub episode: (u64, u32, u64),
}

/// The coefficient of a trained token, one for each sample; masked tokens have 0.
///
/// With w the weight and n the trained tokens of a sample, a token of sample i counts
/// - `sample_mean`: `w_i / (n_i * sum_j w_j)`; a sample with n = 0 still counts in the sum;
/// - `token_mean`: `w_i / (sum_j w_j * n_j)`;
/// - `constant_length`: `w_i / (loss_len * sum_j w_j)`, which is Dr. GRPO's (arXiv 2503.20783, section 3.2);
/// - `episode_mean`: `W_e / (N_e * sum_j w_j)` with W and N the weights and trained tokens of the sample's episode
///   (slime's default denominator for samples of one rollout id).
pub fn coefficients(samples: &[Weighted], reducer: LossReducer, loss_len: f64) -> Vec<f64> {
    let weight = |sample: &Weighted| f64::from(sample.weight);
    let num = |sample: &Weighted| sample.num_trained as f64;
    let weights: f64 = samples.iter().map(weight).sum();
    let tokens: f64 = samples.iter().map(|sample| weight(sample) * num(sample)).sum();
    let mut episodes: BTreeMap<(u64, u32, u64), (f64, f64)> = BTreeMap::new();
    for sample in samples {
        let (weights, tokens) = episodes.entry(sample.episode).or_default();
        (*weights, *tokens) = (*weights + weight(sample), *tokens + num(sample));
    }
    let coefficient = |sample: &Weighted| match reducer {
        _ if sample.num_trained == 0 || weights == 0.0 || tokens == 0.0 => 0.0,
        LossReducer::SampleMean => weight(sample) / (num(sample) * weights),
        LossReducer::TokenMean => weight(sample) / tokens,
        LossReducer::ConstantLength => weight(sample) / (loss_len * weights),
        LossReducer::EpisodeMean => {
            let (weight, tokens) = episodes[&sample.episode];
            weight / (tokens * weights)
        }
    };
    samples.iter().map(coefficient).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [Weighted; 4] = [
        Weighted { num_trained: 4, weight: 1.0, episode: (0, 0, 0) },
        Weighted { num_trained: 1, weight: 0.5, episode: (0, 0, 7) },
        Weighted { num_trained: 3, weight: 0.5, episode: (0, 0, 7) },
        Weighted { num_trained: 0, weight: 2.0, episode: (0, 0, 9) },
    ];

    #[test]
    fn sample_mean_divides_by_tokens_and_by_all_weights() {
        let got = coefficients(&SAMPLES, LossReducer::SampleMean, 1.0);
        assert_eq!(got, [1.0 / 16.0, 0.125, 0.5 / 12.0, 0.0]);
    }

    #[test]
    fn token_mean_divides_by_all_weighted_tokens() {
        let got = coefficients(&SAMPLES, LossReducer::TokenMean, 1.0);
        assert_eq!(got, [1.0 / 6.0, 0.5 / 6.0, 0.5 / 6.0, 0.0]);
    }

    #[test]
    fn constant_length_divides_by_a_constant() {
        let got = coefficients(&SAMPLES, LossReducer::ConstantLength, 10.0);
        assert_eq!(got, [1.0 / 40.0, 0.5 / 40.0, 0.5 / 40.0, 0.0]);
    }

    #[test]
    fn an_episode_of_several_samples_is_one_mean() {
        let got = coefficients(&SAMPLES, LossReducer::EpisodeMean, 1.0);
        assert_eq!(got, [1.0 / 16.0, 1.0 / 16.0, 1.0 / 16.0, 0.0]);
    }

    #[test]
    fn nothing_trained_gives_zeros() {
        for reducer in [LossReducer::TokenMean, LossReducer::EpisodeMean] {
            assert_eq!(coefficients(&SAMPLES[3..], reducer, 1.0), [0.0]);
        }
    }
}
