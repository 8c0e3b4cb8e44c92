//! The manifest that commits a step: which samples it trains, where they lie, and what became of every prompt and token.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::VersionRun;

/// A sealed segment as a manifest pins it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRef {
    /// Path below the run directory.
    pub path: String,
    /// Size in bytes.
    pub num_bytes: u64,
    /// xxh3-64 of the whole file.
    pub checksum: u64,
    /// Trainer epoch on whose line the segment's weight versions lie.
    pub epoch: u64,
}

/// A sealed column file as a manifest pins it; a judge is never asked again for a committed step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnRef {
    /// Name of the column, for example `reward`.
    pub name: String,
    /// Path below the run directory.
    pub path: String,
    /// Size in bytes.
    pub num_bytes: u64,
    /// xxh3-64 of the whole file.
    pub checksum: u64,
}

/// One sample of a committed or carried group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleEntry {
    /// Index inside the group.
    pub index: u32,
    /// Part of the sample (0 unless it was continued).
    pub part: u32,
    /// xxh3-64 of its tokens.
    pub tokens_hash: u64,
    /// Response tokens.
    pub response_len: u32,
    /// Tokens whose loss mask is set and whose version is within the staleness bound.
    pub num_trained: u32,
    /// Tokens masked because their version is older than [`Manifest::min_version`].
    pub num_masked: u32,
    /// Oldest version among the trained tokens.
    pub oldest_version: u64,
    /// Tokens whose loss mask is set, per version, before any is masked for its age.
    pub versions: Vec<VersionRun>,
}

/// What the samples of a group say about its prompt and about the policy: what stages and curricula go by.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Scores {
    /// Mean reward; none where one of the rewards is not finite, or there are none.
    pub reward_mean: Option<f64>,
    /// Share of samples whose reward is 1.
    pub pass_rate: f64,
    /// Share of samples that were cut off at the longest response.
    pub truncated: f64,
}

/// One group of samples, with the place of its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupEntry {
    /// Step the group was drawn for.
    pub step: u64,
    /// Number of the group inside that step.
    pub group: u32,
    /// Attempt whose samples are used.
    pub attempt: u32,
    /// Its position in the data stream.
    pub cursor: u64,
    /// Position whose prompt it has, where a curriculum chose another than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<u64>,
    /// Identity of the prompt.
    pub prompt_id: String,
    /// The segment that holds the rows.
    pub segment: SegmentRef,
    /// First row of the group inside the segment; the rows are contiguous.
    pub first_row: u32,
    /// Columns that were joined when the group was accepted.
    pub columns: Vec<ColumnRef>,
    /// The samples, in row order.
    pub samples: Vec<SampleEntry>,
    /// How much a step gains from it, as the builder's policy says; steps in order of priority take the greatest first.
    #[serde(default)]
    pub priority: f64,
    /// What kind of group it is, as the policy says; stratified steps take from every kind in turn.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stratum: String,
    /// Why a filter would rather not have it: it is taken only by a step that would have to draw more groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<String>,
    /// Steps that trained it before.
    #[serde(default)]
    pub num_uses: u32,
    /// What stages and curricula go by.
    #[serde(default)]
    pub scores: Scores,
}

impl GroupEntry {
    /// All response tokens of its samples.
    pub fn num_tokens(&self) -> u64 {
        self.samples.iter().map(|sample| u64::from(sample.response_len)).sum()
    }
}

/// A drawn group whose samples are not all there yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// Step the group was drawn for.
    pub step: u64,
    /// Number of the group inside that step.
    pub group: u32,
    /// Its position in the data stream.
    pub cursor: u64,
    /// Position whose prompt it has, where a curriculum chose another than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<u64>,
    /// Newest attempt that was asked for.
    pub attempt: u32,
}

/// A group that a filter refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Step the group was drawn for.
    pub step: u64,
    /// Number of the group inside that step.
    pub group: u32,
    /// Its position in the data stream.
    pub cursor: u64,
    /// Position whose prompt it has, where a curriculum chose another than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<u64>,
    /// Identity of the prompt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prompt_id: String,
    /// Share of its samples whose reward is 1.
    #[serde(default)]
    pub pass_rate: f64,
    /// Why, as the filter named it.
    pub reason: String,
    /// Response tokens thrown away with it.
    pub num_tokens: u64,
}

/// Why a finished group that no filter refused is not trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// All its tokens are older than the staleness bound, or their version has left the line.
    Expired,
    /// The step was full (fixed order).
    Surplus,
}

/// A finished group that is given up; its prompt is drawn again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Step the group was drawn for.
    pub step: u64,
    /// Number of the group inside that step.
    pub group: u32,
    /// Position of the prompt in the data stream.
    pub cursor: u64,
    /// Why.
    pub reason: DropReason,
    /// Response tokens thrown away with it; 0 where an earlier step trained them.
    pub num_tokens: u64,
}

/// What became of every sampled token, from the manifest before to this one: what that one carried and what was
/// finished since is `response - reused + refused + expired + surplus + carried`, and `response` is
/// `trained + masked + untrained`. `replaced` stands beside it: of each group one attempt counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Response tokens of groups that were finished and judged since the manifest before.
    pub finished: u64,
    /// Response tokens of the accepted groups.
    pub response: u64,
    /// Of these: trained.
    pub trained: u64,
    /// Of these: masked for being older than the staleness bound.
    pub masked: u64,
    /// Of these: never to be trained (their loss mask is 0).
    pub untrained: u64,
    /// Of these: trained by an earlier step, too.
    pub reused: u64,
    /// Response tokens of refused groups.
    pub refused: u64,
    /// Response tokens of groups too old to be trained at all; their prompts are drawn again.
    pub expired: u64,
    /// Response tokens of finished groups thrown away because the step was full (fixed order).
    pub surplus: u64,
    /// Response tokens of groups kept for later steps that no step has trained.
    pub carried: u64,
    /// Response tokens of attempts that failed, were incomplete or whose version left the line; asked for again.
    pub replaced: u64,
}

impl Account {
    /// Every number with its name.
    pub fn fates(&self) -> [(&'static str, u64); 11] {
        [
            ("finished", self.finished),
            ("response", self.response),
            ("trained", self.trained),
            ("masked", self.masked),
            ("untrained", self.untrained),
            ("reused", self.reused),
            ("refused", self.refused),
            ("expired", self.expired),
            ("surplus", self.surplus),
            ("carried", self.carried),
            ("replaced", self.replaced),
        ]
    }

    /// Tokens that had to find a place: those carried by the manifest before (`carried_before`) and the finished ones,
    /// and where they are.
    pub fn balance(&self, carried_before: u64) -> (u64, u64) {
        let placed = self.response - self.reused + self.refused + self.expired + self.surplus + self.carried;
        (carried_before + self.finished, placed)
    }
}

/// Stages that a metric begins, as far as the steps until here have come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stages {
    /// The first step of each that is reached, by its number. It never changes.
    pub begun: BTreeMap<u32, u64>,
    /// The last steps in a row whose metric was beyond the threshold of the next one.
    pub num_holding: u32,
    /// The value nearest to that threshold so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<f64>,
}

/// The commit of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The step that is committed.
    pub step: u64,
    /// Incarnation of the step builder that committed it.
    pub builder: u64,
    /// Newest trainer epoch the builder knew.
    pub epoch: u64,
    /// Tokens generated with an older version than this are masked.
    pub min_version: u64,
    /// The groups to train, in training order.
    pub groups: Vec<GroupEntry>,
    /// The groups that filters refused since the previous manifest.
    pub refused: Vec<Refusal>,
    /// Finished groups that were given up since the previous manifest for other reasons.
    #[serde(default)]
    pub dropped: Vec<Dropped>,
    /// Accepted groups kept for later steps, in the order of acceptance.
    pub carried: Vec<GroupEntry>,
    /// Drawn groups that were still running.
    pub outstanding: Vec<Draw>,
    /// Positions drawn before whose groups came to nothing; they are drawn again first.
    pub returned: Vec<u64>,
    /// Number of the next group of every step that was open, so no identity is given twice.
    pub next_group: BTreeMap<u64, u32>,
    /// Positions of the data stream below this one were drawn at least once.
    pub cursor: u64,
    /// What became of every token.
    pub account: Account,
    /// What later steps are drawn by.
    #[serde(default)]
    pub stages: Stages,
}

impl Manifest {
    /// The distinct segments the trained groups lie in, in order of first use.
    pub fn segments(&self) -> Vec<&SegmentRef> {
        let mut seen = std::collections::BTreeSet::new();
        self.groups.iter().map(|group| &group.segment).filter(|segment| seen.insert(&segment.path)).collect()
    }

    /// The distinct column files the trained groups use, in order of first use.
    pub fn columns(&self) -> Vec<&ColumnRef> {
        let mut seen = std::collections::BTreeSet::new();
        self.groups
            .iter()
            .flat_map(|group| &group.columns)
            .filter(|column| seen.insert(&column.path))
            .collect()
    }

    /// Oldest step whose folder this manifest still names: nothing at or above it may be pruned.
    pub fn oldest_step(&self) -> u64 {
        let groups = self.groups.iter().chain(&self.carried).map(|group| group.step);
        groups.chain(self.outstanding.iter().map(|draw| draw.step)).min().unwrap_or(self.step).min(self.step)
    }

    /// Largest `step - oldest_version` over the trained samples.
    pub fn staleness(&self) -> u64 {
        self.staleness_histogram().last_key_value().map_or(0, |(staleness, _)| *staleness)
    }

    /// Samples with trained tokens by `step - oldest_version`.
    pub fn staleness_histogram(&self) -> BTreeMap<u64, u64> {
        let mut histogram = BTreeMap::new();
        for sample in self.groups.iter().flat_map(|g| &g.samples).filter(|s| s.num_trained > 0) {
            *histogram.entry(self.step.saturating_sub(sample.oldest_version)).or_default() += 1;
        }
        histogram
    }
}
