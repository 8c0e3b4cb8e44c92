//! What a shaping does to single logits of a chunk: penalties in place, the softmax over kept ids, and their gradients.
//!
//! Host lists sorted by id, so that those of a chunk of ids lie side by side; a chunk's part goes to the device when it is
//! its turn. Pairs `(row, column)` are unique, so nothing here depends on the order of additions.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::shaping::{Seen, Shaping};
use crate::Result;

/// The lists of a shaping for a range of rows.
#[derive(Debug)]
pub(super) struct Sparse {
    kept: Option<Kept>,
    penalties: Option<Penalised>,
}

#[derive(Debug)]
struct Kept {
    is_recorded: Vec<bool>,
    entries: Vec<(i64, i64)>,
}

#[derive(Debug)]
struct Penalised {
    entries: Vec<(i64, Seen)>,
    factors: Vec<[f64; 2]>,
    offs: Vec<f64>,
}

/// Places `[e]` in a chunk.
struct Places {
    rows_e: Tensor,
    columns_e: Tensor,
}

impl Places {
    fn new(entries: impl Iterator<Item = (i64, i64)>, first: i64, like: &Tensor) -> Result<Self> {
        let (rows, columns): (Vec<i64>, Vec<i64>) = entries.map(|(row, id)| (row, id - first)).unzip();
        let tensor = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(like.device());
        Ok(Self { rows_e: tensor(&rows)?, columns_e: tensor(&columns)? })
    }

    fn get(&self, values_rn: &Tensor) -> Result<Tensor> {
        Ok(values_rn.f_index(&[Some(&self.rows_e), Some(&self.columns_e)])?)
    }

    fn put(&self, values_rn: &Tensor, values_e: &Tensor) -> Result<()> {
        let mut values_rn = values_rn.shallow_clone();
        let values_e = values_e.f_to_kind(values_rn.kind())?;
        let _ = values_rn.f_index_put_(&[Some(&self.rows_e), Some(&self.columns_e)], &values_e, false)?;
        Ok(())
    }

    fn of_row(&self, values_r: &Tensor) -> Result<Tensor> {
        Ok(values_r.f_index_select(0, &self.rows_e)?)
    }
}

/// Changes of the gradient of a chunk, made ready before its logits are overwritten.
pub(super) struct Corrections {
    kept: Option<(Places, Tensor)>,
    penalties: Option<(Places, Tensor)>,
}

impl Sparse {
    /// The lists of `rows`; `targets` are those of all rows.
    pub fn new(shaping: &Shaping<'_>, rows: Range<usize>, targets: &[i64]) -> Self {
        let kept = shaping.kept.map(|kept| {
            let mut entries = kept.entries(rows.clone(), targets);
            entries.sort_unstable_by_key(|(row, id)| (*id, *row));
            let is_recorded = kept.is_recorded().iter().skip(rows.start).take(rows.len()).copied();
            Kept { is_recorded: is_recorded.collect(), entries }
        });
        let penalties = shaping.penalties.map(|penalties| {
            let mut entries = penalties.entries(rows);
            entries.sort_unstable_by_key(|(row, seen)| (seen.id, *row));
            let (factors, offs) = entries.iter().map(|(_, seen)| penalties.of(*seen)).unzip();
            Penalised { entries, factors, offs }
        });
        Self { kept, penalties }
    }

    /// Whether some rows may keep only some ids.
    pub fn has_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Which rows `[r]` (bool) keep only some ids; `None` where all keep all.
    pub fn is_recorded(&self, like: &Tensor) -> Result<Option<Tensor>> {
        let flags = |kept: &Kept| Tensor::f_from_slice(&kept.is_recorded)?.f_to_device(like.device());
        Ok(self.kept.as_ref().map(flags).transpose()?)
    }

    /// Applies the penalties to a chunk, in place. Returns the factors that its gradient gets.
    pub fn penalise(&self, logits_rn: &Tensor, first: i64) -> Result<Option<PenaltyFactors>> {
        let Some(penalised) = &self.penalties else { return Ok(None) };
        let range = within(&penalised.entries, first, logits_rn, |(_, seen)| seen.id);
        let entries = penalised.entries[range.clone()].iter().map(|(row, seen)| (*row, seen.id));
        let places = Places::new(entries, first, logits_rn)?;
        let values = |values: &mut dyn Iterator<Item = f64>| {
            let host = Tensor::f_from_slice(&values.collect::<Vec<f64>>())?;
            host.f_to_kind(logits_rn.kind())?.f_to_device(logits_rn.device())
        };
        let factors = &penalised.factors[range.clone()];
        let above_e = values(&mut factors.iter().map(|[above, _]| *above))?;
        let below_e = values(&mut factors.iter().map(|[_, below]| *below))?;
        let off_e = values(&mut penalised.offs[range].iter().copied())?;
        let logits_e = places.get(logits_rn)?;
        let factors_e = above_e.f_where_self(&logits_e.f_gt(0.0)?, &below_e)?;
        places.put(logits_rn, &logits_e.f_mul(&factors_e)?.f_sub(&off_e)?)?;
        Ok(Some(PenaltyFactors { places, factors_e }))
    }

    /// Takes the kept ids of a chunk into their running softmax `[r, 2]` (largest and sum).
    pub fn absorb_kept(
        &self,
        kept_r2: &Tensor,
        logits_rn: &Tensor,
        first: i64,
        temperature: f64,
    ) -> Result<()> {
        let Some(places) = self.kept_places(logits_rn, first)? else { return Ok(()) };
        let values_e = places.get(logits_rn)?.f_div_scalar(temperature)?;
        let (largest_r, mut sum_r) = (kept_r2.f_select(1, 0)?, kept_r2.f_select(1, 1)?);
        let top_r = largest_r.f_detach_copy()?.f_index_reduce_(0, &places.rows_e, &values_e, "amax", true)?;
        let _ = sum_r.f_mul_(&largest_r.f_sub(&top_r)?.f_exp()?)?;
        let weights_e = values_e.f_sub(&places.of_row(&top_r)?)?.f_exp()?;
        let _ = sum_r.f_index_add_(0, &places.rows_e, &weights_e)?;
        kept_r2.f_select(1, 0)?.f_copy_(&top_r)?;
        Ok(())
    }

    /// What has to change in the gradient of a chunk of (penalised) logits: that of the log-prob `slopes_r` through the
    /// softmax over kept ids, whose log-sum-exp is `lse_r`.
    pub fn corrections(
        &self,
        logits_rn: &Tensor,
        (slopes_r, lse_r): (&Tensor, &Tensor),
        first: i64,
        temperature: f64,
        penalties: Option<PenaltyFactors>,
    ) -> Result<Corrections> {
        let kept = match self.kept_places(logits_rn, first)? {
            Some(places) => {
                let values_e = places.get(logits_rn)?.f_div_scalar(temperature)?;
                let probs_e = values_e.f_sub(&places.of_row(lse_r)?)?.f_exp()?;
                let grad_e = probs_e.f_mul(&places.of_row(slopes_r)?)?.f_div_scalar(-temperature)?;
                Some((places, grad_e))
            }
            None => None,
        };
        Ok(Corrections { kept, penalties: penalties.map(|p| (p.places, p.factors_e)) })
    }

    fn kept_places(&self, logits_rn: &Tensor, first: i64) -> Result<Option<Places>> {
        let Some(kept) = &self.kept else { return Ok(None) };
        let range = within(&kept.entries, first, logits_rn, |(_, id)| *id);
        Places::new(kept.entries[range].iter().copied(), first, logits_rn).map(Some)
    }
}

/// The penalised places of a chunk with the slopes `[e]` of their new logits in the old ones.
pub(super) struct PenaltyFactors {
    places: Places,
    factors_e: Tensor,
}

impl Corrections {
    /// Changes the gradient `[r, n]` of a chunk in place.
    pub fn apply(&self, grad_rn: &Tensor) -> Result<()> {
        if let Some((places, grad_e)) = &self.kept {
            places.put(grad_rn, &places.get(grad_rn)?.f_to_kind(grad_e.kind())?.f_add(grad_e)?)?;
        }
        if let Some((places, factors_e)) = &self.penalties {
            places.put(grad_rn, &places.get(grad_rn)?.f_to_kind(factors_e.kind())?.f_mul(factors_e)?)?;
        }
        Ok(())
    }
}

/// The entries whose ids are those of the chunk's columns.
fn within<T>(entries: &[T], first: i64, logits_rn: &Tensor, id: impl Fn(&T) -> i64) -> Range<usize> {
    let end = first + logits_rn.size().last().copied().unwrap_or(0);
    entries.partition_point(|entry| id(entry) < first)..entries.partition_point(|entry| id(entry) < end)
}

/// The softmax over kept ids before any, `[r, 2]`.
pub(super) fn fresh_kept(num_rows: i64, options: (Kind, tch::Device)) -> Result<Tensor> {
    Ok(slime_kernel::head_loss::fresh_state(num_rows, options)?.f_narrow(1, 0, 2)?.f_contiguous()?)
}
