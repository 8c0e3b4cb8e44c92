//! Rewards: one file per reward type, and the weighted sum of several.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod command;
mod error;
mod exact;
mod format;
mod number;
mod rational;
mod reward_set;
mod samples;
mod spec;

pub use answer::answer_text;
pub use error::{Error, Result};
pub use rational::Rational;
pub use reward_set::{Part, RewardSet, Scored};
pub use spec::{TYPES, split_types};

/// What a reward sees of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    /// What the model wrote.
    pub response: &'a str,
    /// The expected answer.
    pub label: Option<&'a str>,
    /// The sample's metadata as JSON text.
    pub metadata: Option<&'a str>,
    /// How many tokens the response has, where that is known: as many token rewards there may be.
    pub num_tokens: Option<usize>,
}

/// A reward and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The reward before weighting, finite.
    pub reward: f64,
    /// The answer found and the rule that judged it.
    pub reason: String,
    /// Rewards of single response tokens before weighting (process rewards), finite; empty where there are none.
    pub token_rewards: Vec<f64>,
}

/// One reward type: rows in, a verdict for each in the same order.
trait Verifier: Send {
    /// Scores all rows; a verdict depends on its row only.
    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Verdict>>;
}

impl Verdict {
    fn of(right: bool, reason: String) -> Self {
        Self { reward: f64::from(u8::from(right)), reason, token_rewards: Vec::new() }
    }
}
