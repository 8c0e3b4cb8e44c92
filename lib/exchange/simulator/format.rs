//! The simulator's files: the digests themselves, as JSON, and its prompts and filter.

use std::io::Write;

use serde_json::json;
use slime_record::{GroupEntry, Scores, Stages};
use xxhash_rust::xxh3::xxh3_64;

use crate::segment::{from_json, to_json};
use crate::{
    ColumnDigest, DrawnPrompt, Error, FinishedGroup, Format, History, Outcome, Result, SampleDigest,
    SegmentDigest, SegmentHeader, Standing, StepPolicy, Verdict,
};

/// Segments and columns as JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimFormat;

impl Format for SimFormat {
    type Row = SampleDigest;

    fn write(&self, header: &SegmentHeader, rows: &[SampleDigest], out: &mut dyn Write) -> Result<()> {
        let bytes = to_json(&SegmentDigest { header: *header, rows: rows.to_vec() });
        out.write_all(&bytes).map_err(|source| Error::io("write", "segment", source))
    }

    fn row_bytes(&self, _row: &SampleDigest) -> usize {
        1
    }

    fn digest(&self, bytes: &[u8]) -> Result<SegmentDigest> {
        from_json("segment", bytes)
    }

    fn encode_column(&self, _name: &str, column: &ColumnDigest) -> Result<Vec<u8>> {
        Ok(to_json(column))
    }

    fn column(&self, _name: &str, bytes: &[u8]) -> Result<ColumnDigest> {
        from_json("column", bytes)
    }
}

/// Prompts of an epoch, with two samples in the first stage and three in the second.
const NUM_PROMPTS: u64 = 13;

/// Endless prompts, which come again; a filter that refuses some of them for ever, a stage that begins when prompts did
/// well, and a curriculum that leaves out what did well, as pure functions.
pub(super) struct SimPolicy {
    pub seed: u64,
    pub has_filter: bool,
    /// What the filter refuses may still fill a step.
    pub has_fallback: bool,
    pub refuses_all: bool,
    pub max_staleness: u64,
}

impl SimPolicy {
    /// The second stage has other prompts.
    pub fn prompt_id(step: u64, position: u64, stages: &Stages) -> String {
        let is_second = stages.begun.get(&1).is_some_and(|first| *first <= step);
        format!("{}{}", if is_second { 'q' } else { 'p' }, position % NUM_PROMPTS)
    }

    pub fn num_samples(prompt_id: &str) -> u32 {
        if prompt_id.starts_with('p') { 2 } else { 3 }
    }

    pub fn refuses(&self, prompt_id: &str) -> bool {
        self.has_filter && self.number(prompt_id).is_multiple_of(3)
    }

    fn pass_rate(&self, prompt_id: &str) -> f64 {
        (self.number(prompt_id) / 3 % 5) as f64 / 4.0
    }

    fn number(&self, prompt_id: &str) -> u64 {
        xxh3_64(format!("{}/{prompt_id}", self.seed).as_bytes())
    }
}

impl StepPolicy for SimPolicy {
    fn choose(&mut self, step: u64, cursor: u64, history: &History) -> Result<u64> {
        let own = Self::prompt_id(step, cursor, history.stages());
        let is_easy = |outcome: &&Outcome| outcome.pass_rate > 0.5;
        let is_left_out = history.before(step).filter(is_easy).any(|outcome| outcome.prompt_id == own);
        let others: Vec<u64> = history
            .before(step)
            .filter(|outcome| !is_easy(outcome))
            .map(|outcome| outcome.position)
            .collect();
        // Every second one is asked all the same, so that a step is filled where the others are all refused.
        let is_kept = others.is_empty() || cursor.is_multiple_of(2);
        Ok(if is_left_out && !is_kept { others[cursor as usize % others.len()] } else { cursor })
    }

    fn draw(&mut self, step: u64, position: u64, stages: &Stages) -> Result<Option<DrawnPrompt>> {
        let prompt_id = Self::prompt_id(step, position, stages);
        let num_samples = Self::num_samples(&prompt_id);
        Ok(Some(DrawnPrompt { body: json!(prompt_id), prompt_id, num_samples }))
    }

    fn advance(&mut self, before: &Stages, step: u64, groups: &[GroupEntry]) -> Stages {
        let mut stages = before.clone();
        let is_beyond = groups.iter().all(|group| group.scores.pass_rate > 0.2);
        stages.num_holding = if is_beyond { before.num_holding + 1 } else { 0 };
        if stages.num_holding == 2 {
            stages.begun.entry(1).or_insert(step + 1 + self.max_staleness);
        }
        stages
    }

    fn judge(&mut self, group: &FinishedGroup<'_>) -> Result<Verdict> {
        assert_eq!(group.columns["reward"].len(), group.rows.len());
        let is_refused = self.refuses(&group.rows[0].prompt_id);
        if self.refuses_all {
            return Ok(Verdict::Refuse(["zero_std", "too_long"][group.group as usize % 2].into()));
        }
        Ok(match (is_refused, self.has_fallback) {
            (false, _) => Verdict::Keep,
            (true, false) => Verdict::Refuse("zero_std".into()),
            (true, true) => Verdict::Spare("zero_std".into()),
        })
    }

    fn standing(&mut self, group: &FinishedGroup<'_>) -> Result<Standing> {
        let number = xxh3_64(group.rows[0].prompt_id.as_bytes());
        let pass_rate = self.pass_rate(&group.rows[0].prompt_id);
        let scores = Scores { pass_rate, ..Scores::default() };
        Ok(Standing { priority: (number % 8) as f64, stratum: format!("{}", number % 3), scores })
    }

    fn arrange(&mut self, _step: u64, groups: &[&GroupEntry]) -> Result<Vec<usize>> {
        Ok((0..groups.len()).rev().collect())
    }
}
