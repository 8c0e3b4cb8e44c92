//! The reward of a run: the weighted sum of its types.

use std::fmt;

use crate::error::Result;
use crate::spec::{self, Spec};
use crate::{Error, Row};

/// One type's share of a reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The value before weighting.
    pub reward: f64,
    /// The answer found and the rule that judged it.
    pub reason: String,
}

/// A sample's reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The weighted sum.
    pub reward: f64,
    /// One part for each type, in the order of [`RewardSet::names`].
    pub parts: Vec<Part>,
    /// The weighted sums of the types' rewards of single response tokens; empty where no type gives any.
    pub token_rewards: Vec<f64>,
}

/// Reward types with their weights.
pub struct RewardSet {
    specs: Vec<Spec>,
    names: Vec<String>,
}

impl fmt::Debug for RewardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.specs.iter().map(|spec| (&spec.name, spec.weight))).finish()
    }
}

impl RewardSet {
    /// Parses types such as `number` and `format:json:0.2`.
    ///
    /// # Errors
    /// An unknown type, a weight that is no number, a broken pattern or command.
    pub fn parse<T: AsRef<str>>(types: &[T]) -> Result<Self> {
        let specs = types.iter().map(|text| spec::parse(text.as_ref())).collect::<Result<Vec<_>>>()?;
        if specs.is_empty() {
            return Err(Error::UnknownType {
                name: "(none)".to_owned(),
                hint: "\nhint: name one, such as number".to_owned(),
            });
        }
        let mut names: Vec<String> = Vec::new();
        for spec in &specs {
            let mut name = spec.name.clone();
            let mut copy = 2;
            while names.contains(&name) {
                name = format!("{}#{copy}", spec.name);
                copy += 1;
            }
            names.push(name);
        }
        Ok(Self { specs, names })
    }

    /// What the parts are called, unique.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Scores rows; results are in the same order, and each depends on its own row only.
    ///
    /// # Errors
    /// A missing or unusable label, or a program that fails; rows count from 0.
    pub fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Scored>> {
        let mut scored: Vec<Scored> = rows
            .iter()
            .map(|_| Scored {
                reward: 0.0,
                parts: Vec::with_capacity(self.specs.len()),
                token_rewards: Vec::new(),
            })
            .collect();
        for spec in &mut self.specs {
            for (sample, verdict) in scored.iter_mut().zip(spec.verifier.score(rows)?) {
                sample.reward += spec.weight * verdict.reward;
                let num = sample.token_rewards.len().max(verdict.token_rewards.len());
                sample.token_rewards.resize(num, 0.0);
                for (sum, reward) in sample.token_rewards.iter_mut().zip(verdict.token_rewards) {
                    *sum += spec.weight * reward;
                }
                sample.parts.push(Part { reward: verdict.reward, reason: verdict.reason });
            }
        }
        Ok(scored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reward_is_the_weighted_sum() {
        let mut set = RewardSet::parse(&["number", "format:json:0.25", "exact:-0.5"]).unwrap();
        let rows = [
            Row { response: "4", label: Some("4"), metadata: None, num_tokens: None },
            Row { response: "{\"a\": 4}", label: Some("4"), metadata: None, num_tokens: None },
            Row { response: "five", label: Some("4"), metadata: None, num_tokens: None },
        ];
        let rewards: Vec<f64> = set.score(&rows).unwrap().iter().map(|scored| scored.reward).collect();
        assert_eq!(rewards, [0.75, 1.25, 0.0]);
    }

    #[test]
    fn names_are_unique_and_a_set_is_never_empty() {
        let set = RewardSet::parse(&["number", "number:2"]).unwrap();
        assert_eq!(set.names(), ["number", "number#2"]);
        assert!(RewardSet::parse::<&str>(&[]).is_err());
    }
}
