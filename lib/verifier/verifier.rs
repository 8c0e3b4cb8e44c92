//! What a reward type implements.

use rayon::prelude::*;

use crate::error::Result;
use crate::row::{Row, Verdict};
use crate::spec::Spec;

/// One reward type. A verdict depends on its row only (on its group, where the type compares groups), never on
/// which rows come with it, their number, or the thread.
pub(crate) trait Verifier: Send + Sync {
    /// A verdict for each row, in their order.
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>>;

    /// Whether whole groups must be scored together.
    fn compares_groups(&self) -> bool {
        false
    }

    /// The type it is made around.
    fn inner(&self) -> Option<&Spec> {
        None
    }
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
