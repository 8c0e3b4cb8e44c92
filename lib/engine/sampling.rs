//! How a token is chosen: the parameters of sampling and the seed of one sample.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::{Constraint, Error, Penalties, Result};

/// What the random numbers of one sample derive from: never from rank, time, thread or the rest of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleSeed {
    /// `run.seed`.
    pub seed: u64,
    /// The step the sample is drawn for.
    pub step: u64,
    /// Its group.
    pub group: u32,
    /// Its index in the group.
    pub index: u32,
}

impl SampleSeed {
    /// The uniform number in [0, 1) that chooses response token `token` of this sample (`ChaCha8`, counter mode).
    pub fn uniform(&self, token: u64) -> f64 {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&self.step.to_le_bytes());
        key[16..24].copy_from_slice(&u64::from(self.group).to_le_bytes());
        key[24..].copy_from_slice(&u64::from(self.index).to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_word_pos(2 * u128::from(token));
        (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// How the samples of one request are drawn and when they end.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f64,
    /// Keeps tokens at least `min_p` times as likely as the most likely one; 0 keeps all.
    pub min_p: f64,
    /// Penalties on tokens that were seen.
    pub penalties: Penalties,
    /// Added to the logits of single tokens, after the penalties; each token once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Whether a completion says which tokens truncation left to each of its choices.
    pub keeps_ids: bool,
    /// Whether a completion says which experts its tokens went to.
    pub keeps_routes: bool,
    /// Response tokens at most.
    pub max_new_tokens: usize,
    /// Strings that end a response; they stay part of it.
    pub stop: Vec<String>,
    /// Tokens that end a response; they stay part of it.
    pub stop_token_ids: Vec<u32>,
    /// Seed of the request's first sample; sample i uses index + i.
    pub seed: SampleSeed,
    /// Response tokens the prompt already ends with (a continued sample), so random numbers are not used twice.
    pub first_token: u64,
    /// Samples drawn from the prompt, which is computed once for all of them.
    pub n: u32,
    /// How many of the most likely tokens [`crate::NewToken`] tells at each position.
    pub top_log_probs: usize,
    /// The language responses are kept to; log-probs are those under it.
    pub constraint: Option<Constraint>,
    /// Of requests that want the same room the one with the larger number gets it; running samples of smaller numbers make
    /// room for it, and lose nothing.
    pub priority: i64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Penalties::default(),
            logit_bias: Vec::new(),
            keeps_ids: false,
            keeps_routes: false,
            max_new_tokens: 256,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            seed: SampleSeed::default(),
            first_token: 0,
            n: 1,
            top_log_probs: 0,
            constraint: None,
            priority: 0,
        }
    }
}

impl SamplingParams {
    /// Refuses values outside their range.
    ///
    /// # Errors
    /// [`Error::Parameter`] names the key, the value and the range.
    pub fn check(&self) -> Result<()> {
        let rule = |ok: bool, key, value: String, expected| {
            if ok { Ok(()) } else { Err(Error::Parameter { key, value, expected }) }
        };
        let t = self.temperature;
        rule(t.is_finite() && t >= 0.0, "temperature", t.to_string(), "a number of at least 0")?;
        rule(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p.to_string(), "above 0, at most 1")?;
        rule((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p.to_string(), "0 to 1")?;
        self.penalties.check()?;
        let bias = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite());
        if let Some((token, bias)) = bias {
            rule(false, "logit_bias", format!("{bias} (token {token})"), "finite numbers")?;
        }
        rule(self.max_new_tokens > 0, "max_new_tokens", "0".to_owned(), "at least 1")?;
        rule(self.n > 0, "n", "0".to_owned(), "at least 1")
    }

    /// Whether every token keeps its probability.
    pub fn keeps_all(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_numbers_depend_on_every_part_of_the_seed_and_on_the_token() {
        let base = SampleSeed { seed: 1, step: 2, group: 3, index: 4 };
        let other = [
            SampleSeed { seed: 2, ..base },
            SampleSeed { step: 3, ..base },
            SampleSeed { group: 4, ..base },
            SampleSeed { index: 5, ..base },
        ];
        assert!((base.uniform(7) - base.uniform(7)).abs() < f64::EPSILON);
        assert!((base.uniform(7) - base.uniform(8)).abs() > 1e-9);
        for seed in other {
            assert!((base.uniform(7) - seed.uniform(7)).abs() > 1e-9);
        }
        let mean: f64 = (0..10_000).map(|t| base.uniform(t)).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "mean {mean}");
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let error = SamplingParams { top_p: 1.5, ..Default::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "top_p = 1.5 is out of range: expected above 0, at most 1");
        assert_eq!(error.exit_code(), 78);
    }
}
