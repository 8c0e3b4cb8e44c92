//! The open choices of the step builder: prompts, filters, and what the buffer is ordered by.

use std::collections::BTreeMap;

use serde_json::Value;
use slime_record::GroupEntry;

use crate::{Result, SampleDigest};

/// A prompt as the data source gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnPrompt {
    /// Identity of the prompt.
    pub prompt_id: String,
    /// What the replica needs to generate from it.
    pub body: Value,
}

/// A finished group with its columns, as a filter sees it.
#[derive(Debug)]
pub struct FinishedGroup<'a> {
    /// Step it was drawn for.
    pub step: u64,
    /// Number inside the step.
    pub group: u32,
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

/// What the buffer orders by.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standing {
    /// How much a step gains from the group: a finite number.
    pub priority: f64,
    /// What kind of group it is.
    pub stratum: String,
}

/// The open choices of the step builder; pure functions, since a restarted builder asks again.
pub trait StepPolicy {
    /// The prompt that stands at a position of the data stream for groups of a step; none when the data ended.
    fn draw(&mut self, step: u64, cursor: u64) -> Result<Option<DrawnPrompt>>;
    /// The dynamic filter.
    fn judge(&mut self, group: &FinishedGroup<'_>) -> Result<Verdict>;
    /// What the buffer orders a kept group by.
    fn standing(&mut self, group: &FinishedGroup<'_>) -> Result<Standing>;
    /// The order in which a step takes groups ([`super::BufferOrder::Policy`]): places in `groups`, best first.
    fn arrange(&mut self, step: u64, groups: &[&GroupEntry]) -> Result<Vec<usize>>;
}
