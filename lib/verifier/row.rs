//! What a reward sees of a sample, and what it says about it.

use serde_json::{Map, Value};

/// What a reward sees of a sample. Tests and callers fill what they have: `..Row::default()`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Row<'a> {
    /// The prompt as JSON text: a string, or a list of messages.
    pub prompt: Option<&'a str>,
    /// What the model wrote.
    pub response: &'a str,
    /// The expected answer.
    pub label: Option<&'a str>,
    /// The sample's metadata as JSON text.
    pub metadata: Option<&'a str>,
    /// How many tokens the response has, where that is known: as many token rewards there may be.
    pub num_tokens: Option<usize>,
    /// Where each token of the response begins in it, in bytes, where that is known.
    pub token_offsets: Option<&'a [usize]>,
    /// The group it belongs to, as (step, group), where that is known.
    pub group: Option<(u64, u64)>,
}

impl<'a> Row<'a> {
    /// The label of a row whose type needs one; empty where there is none.
    pub(crate) fn expected(&self) -> &'a str {
        self.label.unwrap_or_default()
    }

    /// The metadata, where it is an object.
    pub(crate) fn metadata_object(&self) -> Option<Map<String, Value>> {
        match serde_json::from_str(self.metadata?) {
            Ok(Value::Object(object)) => Some(object),
            _ => None,
        }
    }
}

/// A reward and why.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// The reward before weighting.
    pub reward: f64,
    /// What was judged and how, in words.
    pub reason: String,
    /// The answer found in the response; `None` where there is none or the whole response is judged.
    pub answer: Option<String>,
    /// Why the reward is a configured default, where the type failed; such rewards are counted.
    pub failure: Option<String>,
    /// Rewards of single response tokens before weighting (process rewards); empty where there are none.
    pub token_rewards: Vec<f64>,
}

impl Verdict {
    /// 1 for right, 0 for wrong.
    pub(crate) fn of(right: bool, reason: impl Into<String>) -> Self {
        Self::new(f64::from(u8::from(right)), reason)
    }

    /// A reward.
    pub(crate) fn new(reward: f64, reason: impl Into<String>) -> Self {
        Self { reward, reason: reason.into(), ..Self::default() }
    }

    /// With the answer that was found.
    pub(crate) fn about(self, answer: impl Into<String>) -> Self {
        Self { answer: Some(answer.into()), ..self }
    }
}
