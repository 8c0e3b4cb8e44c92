//! From the running softmax of rows to their log-probs and entropy, and back to the slopes of a loss.

use slime_comm::Op;
use slime_kernel::head_loss::fresh_state;
use tch::{Device, Kind, Tensor};

use super::shard::Ids;
use super::sparse::{Sparse, fresh_kept};
use crate::Result;

/// The softmax of every row over what was seen so far.
pub(super) struct State {
    /// As `slime_kernel::head_loss` has it.
    pub all_r4: Tensor,
    /// Largest logit and sum over the kept ids; only where some rows keep only some.
    pub kept_r2: Option<Tensor>,
}

/// What is known of every row once all logits were seen; each `[r]`.
#[expect(clippy::struct_field_names, reason = "the suffix is the shape")]
pub(super) struct Outcome {
    pub log_probs_r: Tensor,
    pub entropy_r: Tensor,
    /// Over all ids.
    pub lse_r: Tensor,
    /// Over the kept ids, over all where a row keeps all.
    pub kept_lse_r: Tensor,
}

/// A loss's slopes in the outputs; each `[r]`.
pub(super) struct Grads<'a> {
    pub log_probs_r: Option<&'a Tensor>,
    pub entropy_r: Option<&'a Tensor>,
}

impl State {
    pub fn new(num_rows: i64, has_kept: bool, options: (Kind, Device)) -> Result<Self> {
        let kept_r2 = has_kept.then(|| fresh_kept(num_rows, options)).transpose()?;
        Ok(Self { all_r4: fresh_state(num_rows, options)?, kept_r2 })
    }

    /// Makes it the softmax over the ids of all ranks, the same on each.
    pub fn all_reduce(&mut self, ids: &Ids) -> Result<()> {
        if !ids.is_sharded() {
            return Ok(());
        }
        let largest_r = self.all_r4.f_select(1, 0)?;
        let mut tops = vec![largest_r.shallow_clone()];
        if let Some(kept_r2) = &self.kept_r2 {
            tops.push(kept_r2.f_select(1, 0)?);
        }
        let mut tops = Tensor::f_stack(&tops, 0)?;
        ids.all_reduce(&mut tops, Op::Max)?;
        let shift_r = largest_r.f_sub(&tops.f_get(0)?)?;
        let keep_r = shift_r.f_exp()?;
        let (sum_r, weighted_r) = (self.all_r4.f_select(1, 1)?, self.all_r4.f_select(1, 2)?);
        let mut sums = vec![
            sum_r.f_mul(&keep_r)?,
            sum_r.f_mul(&shift_r)?.f_add(&weighted_r)?.f_mul(&keep_r)?,
            self.all_r4.f_select(1, 3)?,
        ];
        if let Some(kept_r2) = &self.kept_r2 {
            let keep_r = kept_r2.f_select(1, 0)?.f_sub(&tops.f_get(1)?)?.f_exp()?;
            sums.push(kept_r2.f_select(1, 1)?.f_mul(&keep_r)?);
        }
        let mut sums = Tensor::f_stack(&sums, 0)?;
        ids.all_reduce(&mut sums, Op::Sum)?;
        self.all_r4 = Tensor::f_cat(&[tops.f_narrow(0, 0, 1)?, sums.f_narrow(0, 0, 3)?], 0)?.f_tr()?;
        if self.kept_r2.is_some() {
            self.kept_r2 =
                Some(Tensor::f_cat(&[tops.f_narrow(0, 1, 1)?, sums.f_narrow(0, 3, 1)?], 0)?.f_tr()?);
        }
        Ok(())
    }

    pub fn finish(&self, sparse: &Sparse) -> Result<Outcome> {
        let part = |at: i64| self.all_r4.f_select(1, at);
        let log_sum_r = part(1)?.f_log()?;
        let lse_r = log_sum_r.f_add(&part(0)?)?;
        // H = log(sum e^s) - sum(s e^s) / sum(e^s) with s = logit - largest.
        let entropy_r = log_sum_r.f_sub(&part(2)?.f_div(&part(1)?)?)?;
        let kept_lse_r = match (&self.kept_r2, sparse.is_recorded(&lse_r)?) {
            (Some(kept_r2), Some(is_recorded_r)) => {
                let kept_r = kept_r2.f_select(1, 1)?.f_log()?.f_add(&kept_r2.f_select(1, 0)?)?;
                kept_r.f_where_self(&is_recorded_r, &lse_r)?
            }
            _ => lse_r.shallow_clone(),
        };
        Ok(Outcome { log_probs_r: part(3)?.f_sub(&kept_lse_r)?, entropy_r, lse_r, kept_lse_r })
    }
}

/// A loss's slopes as the gradient of a chunk needs them.
pub(super) struct Slope {
    /// In the log-probs, `[r]`.
    pub picked_r: Tensor,
    /// What `slime_kernel::head_loss::slope` reads.
    pub rows_r5: Tensor,
    /// As in [`Outcome`].
    pub kept_lse_r: Tensor,
}

impl Grads<'_> {
    /// With log-sum-exp, entropy and log-sum-exp over the kept ids of every row.
    pub fn slope(&self, [lse_r, entropy_r, kept_lse_r]: [&Tensor; 3], sparse: &Sparse) -> Result<Slope> {
        let or_zero = |grad: Option<&Tensor>| match grad {
            Some(grad) => grad.f_to_kind(lse_r.kind()),
            None => lse_r.f_zeros_like(),
        };
        let picked_r = or_zero(self.log_probs_r)?;
        let dense_r = match sparse.is_recorded(lse_r)? {
            Some(is_recorded_r) => picked_r.f_masked_fill(&is_recorded_r, 0.0)?,
            None => picked_r.shallow_clone(),
        };
        let columns = [lse_r, entropy_r, &dense_r, &picked_r, &or_zero(self.entropy_r)?];
        let rows_r5 = Tensor::f_stack(&columns, 1)?.f_contiguous()?;
        Ok(Slope { picked_r, rows_r5, kept_lse_r: kept_lse_r.shallow_clone() })
    }
}
