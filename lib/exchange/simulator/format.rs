//! The simulator's files: the digests themselves, as JSON, and its prompts and filter.

use std::io::Write;

use serde_json::json;
use slime_record::GroupEntry;
use xxhash_rust::xxh3::xxh3_64;

use crate::segment::{from_json, to_json};
use crate::{
    ColumnDigest, DrawnPrompt, Error, FinishedGroup, Format, Result, SampleDigest, SegmentDigest,
    SegmentHeader, Standing, StepPolicy, Verdict,
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

/// Endless prompts; a filter that refuses some of them for ever, as a pure function.
pub(super) struct SimPolicy {
    pub seed: u64,
    pub has_filter: bool,
    /// What the filter refuses may still fill a step.
    pub has_fallback: bool,
    pub refuses_all: bool,
}

impl SimPolicy {
    /// The second stage, which begins at step 3, has other prompts.
    pub fn prompt_id(step: u64, cursor: u64) -> String {
        format!("{}{cursor}", if step < 3 { 'p' } else { 'q' })
    }

    pub fn refuses(&self, prompt_id: &str) -> bool {
        self.has_filter && xxh3_64(format!("{}/{prompt_id}", self.seed).as_bytes()).is_multiple_of(3)
    }
}

impl StepPolicy for SimPolicy {
    fn draw(&mut self, step: u64, cursor: u64) -> Result<Option<DrawnPrompt>> {
        let prompt_id = Self::prompt_id(step, cursor);
        Ok(Some(DrawnPrompt { body: json!(prompt_id), prompt_id }))
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
        Ok(Standing { priority: (number % 8) as f64, stratum: format!("{}", number % 3) })
    }

    fn arrange(&mut self, _step: u64, groups: &[&GroupEntry]) -> Result<Vec<usize>> {
        Ok((0..groups.len()).rev().collect())
    }
}
