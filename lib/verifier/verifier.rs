//! What a reward type implements.

use rayon::prelude::*;

use crate::error::Result;
use crate::row::{Row, Verdict};

/// One reward type. A verdict depends on its row only (on its group, where the type compares groups), never on
/// which rows come with it, their number, or the thread.
pub(crate) trait Verifier: Send + Sync {
    /// A verdict for each row, in their order.
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>>;
}

/// A reward type that judges row by row, on all cores.
pub(crate) trait RowVerifier: Send + Sync {
    /// The verdict on one row.
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict>;
}

impl<T: RowVerifier> Verifier for T {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        rows.par_iter().map(|row| self.verdict(row)).collect()
    }
}
