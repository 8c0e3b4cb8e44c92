//! The open choices of the step builder: prompts, filters, and what the buffer is ordered by.

use std::collections::BTreeMap;

use serde_json::Value;
use slime_record::{GroupEntry, Scores, Stages};

use super::History;
use crate::{Result, SampleDigest};

/// A prompt as the data source gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnPrompt {
    /// Identity of the prompt.
    pub prompt_id: String,
    /// What the replica needs to generate from it.
    pub body: Value,
    /// Samples of its group.
    pub num_samples: u32,
}

/// A finished group with its columns, as a filter sees it.
#[derive(Debug)]
pub struct FinishedGroup<'a> {
    /// Step it was drawn for.
    pub step: u64,
    /// Number inside the step.
    pub group: u32,
    /// The stages that have begun, of which one is that of its step.
    pub stages: &'a Stages,
    /// Its prompt, as the policy drew it.
    pub prompt: &'a Value,
    /// The samples.
    pub rows: &'a [SampleDigest],
    /// Values per column, one for each sample.
    pub columns: &'a BTreeMap<String, Vec<f32>>,
}

/// What a filter says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Train it.
    Keep,
    /// Train it only where a step would have to draw more groups, for this reason.
    Spare(String),
    /// Do not, for this reason.
    Refuse(String),
}

/// What the buffer, stages and curricula go by.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standing {
    /// How much a step gains from the group: a finite number.
    pub priority: f64,
    /// What kind of group it is.
    pub stratum: String,
    /// How well it did.
    pub scores: Scores,
}

/// The open choices of the step builder; pure functions, since a restarted builder asks again.
pub trait StepPolicy {
    /// The position whose prompt a group of `step` at `cursor` of the data stream gets; of `history` only what all
    /// builders know that draw for this step ([`History::before`]).
    fn choose(&mut self, _step: u64, cursor: u64, _history: &History) -> Result<u64> {
        Ok(cursor)
    }
    /// The prompt that stands at a position of the data stream for groups of a step, in its stage; none when the data
    /// ended.
    fn draw(&mut self, step: u64, position: u64, stages: &Stages) -> Result<Option<DrawnPrompt>>;
    /// The stages that have begun once `step` has trained `groups`, from those before. One that begins does so for a
    /// step of which nobody may have drawn yet: the next but as many as the staleness bound.
    fn advance(&mut self, before: &Stages, _step: u64, _groups: &[GroupEntry]) -> Stages {
        before.clone()
    }
    /// The dynamic filter.
    fn judge(&mut self, group: &FinishedGroup<'_>) -> Result<Verdict>;
    /// What the buffer orders a group by, and how well it did.
    fn standing(&mut self, group: &FinishedGroup<'_>) -> Result<Standing>;
    /// The order in which a step takes groups ([`super::BufferOrder::Policy`]): places in `groups`, best first.
    fn arrange(&mut self, step: u64, groups: &[&GroupEntry]) -> Result<Vec<usize>>;
}
