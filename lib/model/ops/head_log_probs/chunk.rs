//! A chunk of logits: the product that makes it, and the two passes over it.

use slime_kernel::head_loss::{self, Columns};
use tch::{Kind, Tensor};

use super::outcome::{Slope, State};
use super::products::{Buffer, gives_wide_sums, product_into};
use super::row_kernels;
use super::sparse::{PenaltyFactors, Sparse};
use crate::Result;

/// The head over some rows: what its chunks have in common.
pub(super) struct Chunks<'a> {
    pub hidden_rd: &'a Tensor,
    /// The rows of the ids that this rank holds.
    pub weight_nd: &'a Tensor,
    pub targets_r: &'a Tensor,
    /// The id of the first row of the weight.
    pub start: i64,
    pub temperature: f64,
    pub sparse: &'a Sparse,
}

/// A chunk whose logits are at hand.
pub(super) struct Chunk {
    /// With penalties, not yet over the temperature.
    logits_rn: Tensor,
    penalties: Option<PenaltyFactors>,
    columns: Columns,
}

impl Chunks<'_> {
    /// The chunk of the weight's rows from `first` on. Its logits lie in `buffer`, until that is used again.
    pub fn chunk(&self, buffer: &mut Buffer, first: i64, len: i64) -> Result<Chunk> {
        let weight_nd = self.weight_nd.f_narrow(0, first, len)?;
        let logits_rn = product_into(buffer, self.hidden_rd, &weight_nd)?;
        let columns = Columns { first: self.start + first, temperature: self.temperature };
        let penalties = self.sparse.penalise(&logits_rn, columns.first)?;
        Ok(Chunk { logits_rn, penalties, columns })
    }

    /// Takes a chunk into the softmax.
    pub fn absorb(&self, state: &State, chunk: &Chunk) -> Result<()> {
        let Chunk { logits_rn, columns, .. } = chunk;
        let (kind, device) = (logits_rn.kind(), logits_rn.device());
        if row_kernels::is_supported(kind, device) {
            row_kernels::absorb(&state.all_r4, logits_rn, self.targets_r, *columns)?;
        } else if head_loss::is_supported(kind, device) {
            head_loss::absorb(&state.all_r4, logits_rn, self.targets_r, *columns)?;
        } else {
            head_loss::absorb_reference(&state.all_r4, logits_rn, self.targets_r, *columns)?;
        }
        match &state.kept_r2 {
            Some(kept_r2) => self.sparse.absorb_kept(kept_r2, logits_rn, columns.first, columns.temperature),
            None => Ok(()),
        }
    }

    /// The gradient `[r, n]` of a chunk's products, in the kind of the weight; it may take the place of the logits.
    pub fn slope(&self, chunk: Chunk, slope: &Slope) -> Result<Tensor> {
        let Chunk { logits_rn, penalties, columns } = chunk;
        let (kind, device) = (logits_rn.kind(), logits_rn.device());
        let kept = (&slope.picked_r, &slope.kept_lse_r);
        let corrections =
            self.sparse.corrections(&logits_rn, kept, columns.first, columns.temperature, penalties)?;
        let rows_r5 = &slope.rows_r5;
        let grad_rn = if row_kernels::is_supported(kind, device) {
            row_kernels::slope(&logits_rn, self.targets_r, rows_r5, columns)?
        } else if head_loss::is_supported(kind, device) {
            let kind = if gives_wide_sums(self.weight_nd) { Kind::BFloat16 } else { kind };
            head_loss::slope(&logits_rn, self.targets_r, rows_r5, columns, kind)?
        } else {
            head_loss::slope_reference(&logits_rn, self.targets_r, rows_r5, columns)?
        };
        corrections.apply(&grad_rn)?;
        Ok(grad_rn.f_to_kind(self.weight_nd.kind())?)
    }
}
