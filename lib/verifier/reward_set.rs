//! The reward of a run: the weighted sum of its types.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use slime_config::RunConfig;
use slime_record::Sample;
use slime_tokenizer::Tokenizer;

use crate::error::Result;
use crate::spec::{self, Spec};
use crate::{Error, Row, Verdict};

/// One type's share of a reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The value before weighting.
    pub reward: f64,
    /// What was judged and how, in words.
    pub reason: String,
    /// The answer found in the response.
    pub answer: Option<String>,
    /// Why the value is a configured default, where the type failed.
    pub failure: Option<String>,
}

/// A sample's reward.
#[derive(Debug, Clone, Default, PartialEq)]
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
    num_failures: AtomicUsize,
    tokenizer: Option<Tokenizer>,
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
        Ok(Self { specs, names, num_failures: AtomicUsize::new(0), tokenizer: None })
    }

    /// The types of a run, with the model's tokenizer where `reward.spans` wants it.
    ///
    /// # Errors
    /// Those of [`RewardSet::parse`], and a tokenizer that cannot be read.
    pub fn of_run(config: &RunConfig) -> Result<Self> {
        let mut set = Self::parse(&config.reward.types)?;
        if config.reward.spans {
            if config.model.path.is_empty() {
                return Err(Error::NoTokenizer);
            }
            set.tokenizer = Some(Tokenizer::from_dir(&config.model.path)?);
        }
        Ok(set)
    }

    /// Where each token of a response begins in it, where `reward.spans` asks for it and the tokens say the text.
    ///
    /// # Errors
    /// Tokens that the tokenizer does not know.
    pub fn token_offsets(&self, sample: &Sample) -> Result<Option<Vec<usize>>> {
        match &self.tokenizer {
            None => Ok(None),
            Some(tokenizer) => Ok(tokenizer.token_starts(sample.response_tokens(), &sample.response)?),
        }
    }

    /// What the parts are called, unique.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a type compares the samples of a group, so that whole groups must be scored together.
    pub fn compares_groups(&self) -> bool {
        self.specs.iter().any(Spec::compares_groups)
    }

    /// Verdicts since the last call that are configured defaults, since their type failed.
    pub fn take_failures(&self) -> usize {
        self.num_failures.swap(0, Ordering::Relaxed)
    }

    /// Scores rows; results are in the same order, and each depends on its own row (or group) only.
    ///
    /// # Errors
    /// The first row that cannot be scored: a missing or unusable label, a program or server that fails.
    pub fn score(&self, rows: &[Row<'_>]) -> Result<Vec<Scored>> {
        let at = |(row, scored): (usize, Result<Scored>)| {
            scored.map_err(|source| Error::Row { row, source: Box::new(source) })
        };
        self.try_score(rows).into_iter().enumerate().map(at).collect()
    }

    /// Scores rows, each by itself: an error is about its row. Results are in the same order.
    pub fn try_score(&self, rows: &[Row<'_>]) -> Vec<Result<Scored>> {
        let empty = || Scored { parts: Vec::with_capacity(self.specs.len()), ..Scored::default() };
        let mut scored: Vec<Result<Scored>> = rows.iter().map(|_| Ok(empty())).collect();
        for spec in &self.specs {
            for (sample, verdict) in scored.iter_mut().zip(spec.score(rows)) {
                match (sample.as_mut(), verdict) {
                    (Ok(sample), Ok(verdict)) => sample.add(spec.weight, verdict),
                    (Ok(_), Err(error)) => *sample = Err(error),
                    (Err(_), _) => {}
                }
            }
        }
        let failed =
            scored.iter().flatten().flat_map(|sample| &sample.parts).filter(|part| part.failure.is_some());
        self.num_failures.fetch_add(failed.count(), Ordering::Relaxed);
        scored
    }
}

impl Scored {
    fn add(&mut self, weight: f64, verdict: Verdict) {
        let Verdict { reward, reason, answer, failure, token_rewards } = verdict;
        self.reward += weight * reward;
        let num = self.token_rewards.len().max(token_rewards.len());
        self.token_rewards.resize(num, 0.0);
        for (sum, reward) in self.token_rewards.iter_mut().zip(token_rewards) {
            *sum += weight * reward;
        }
        self.parts.push(Part { reward, reason, answer, failure });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reward_is_the_weighted_sum() {
        let set = RewardSet::parse(&["number", "format:json:0.25", "exact:-0.5"]).unwrap();
        let rows = [
            Row { response: "4", label: Some("4"), ..Row::default() },
            Row { response: "{\"a\": 4}", label: Some("4"), ..Row::default() },
            Row { response: "five", label: Some("4"), ..Row::default() },
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
