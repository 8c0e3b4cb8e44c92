//! What is taken off the logits of tokens that the text before already has.

use std::collections::HashMap;

use crate::{Error, Result};

/// Penalties on logits, before bias, temperature and truncation: repetition (Keskar et al. 2019, arXiv 1909.05858, as
/// transformers has it for negative logits) on tokens of prompt and response, then frequency and presence (of `OpenAI`'s
/// interface) on tokens of the response. The order is vLLM's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// A seen token's logit is divided by it above 0 and multiplied below; above 0, 1 changes nothing.
    pub repetition: f64,
    /// Taken off once for each time that the token stands in the response; -2 to 2.
    pub frequency: f64,
    /// Taken off once if it stands there at all; -2 to 2.
    pub presence: f64,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { repetition: 1.0, frequency: 0.0, presence: 0.0 }
    }
}

impl Penalties {
    /// Whether no logit changes.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses values outside their range.
    ///
    /// # Errors
    /// [`Error::Parameter`] names the key, the value and the range.
    pub(crate) fn check(&self) -> Result<()> {
        let rule = |ok: bool, key, value: f64, expected| {
            if ok { Ok(()) } else { Err(Error::Parameter { key, value: value.to_string(), expected }) }
        };
        let two = -2.0..=2.0;
        let repetition = self.repetition;
        rule(
            repetition.is_finite() && repetition > 0.0,
            "repetition_penalty",
            repetition,
            "a number above 0",
        )?;
        rule(two.contains(&self.frequency), "frequency_penalty", self.frequency, "-2 to 2")?;
        rule(two.contains(&self.presence), "presence_penalty", self.presence, "-2 to 2")
    }

    /// Changes the logits of seen tokens.
    pub(crate) fn apply(&self, seen: &SeenTokens, logits: &mut [f32]) {
        for (&token, &count) in &seen.counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let mut x = f64::from(*logit);
            x = if x > 0.0 { x / self.repetition } else { x * self.repetition };
            if count > 0 {
                x -= self.frequency * f64::from(count) + self.presence;
            }
            *logit = x as f32;
        }
    }
}

/// How often each token of a text stands in its response; 0 where it stands in the prompt alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeenTokens {
    counts: HashMap<u32, u32>,
}

impl SeenTokens {
    /// Of `tokens`, whose first `prompt_len` are the prompt.
    pub fn new(tokens: &[u32], prompt_len: usize) -> Self {
        let mut seen = Self::default();
        for (at, &token) in tokens.iter().enumerate() {
            *seen.counts.entry(token).or_default() += u32::from(at >= prompt_len);
        }
        seen
    }

    /// Takes a new token of the response.
    pub fn push(&mut self, token: u32) {
        *self.counts.entry(token).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_are_those_of_the_definition() {
        let penalties = Penalties { repetition: 2.0, frequency: 0.5, presence: 0.25 };
        let mut seen = SeenTokens::new(&[0, 1, 1], 1);
        seen.push(3);
        let mut logits = [4.0, -1.0, 3.0, 2.0];
        penalties.apply(&seen, &mut logits);
        // In the prompt: repetition alone. Twice in the response: -1 * 2 - 2 * 0.5 - 0.25. Once: 2 / 2 - 0.75.
        let expected = [2.0f32, -3.25, 3.0, 0.25];
        assert!(
            logits.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6),
            "{logits:?}"
        );
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (penalties, message) in [
            (Penalties { repetition: 0.0, ..Default::default() }, "repetition_penalty = 0 is out of range"),
            (Penalties { frequency: 2.5, ..Default::default() }, "frequency_penalty = 2.5 is out of range"),
            (
                Penalties { presence: f64::NAN, ..Default::default() },
                "presence_penalty = NaN is out of range",
            ),
        ] {
            let error = penalties.check().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
