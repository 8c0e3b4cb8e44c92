//! What the optimizer keeps of one storage.

use std::ops::Range;

use slime_config::TensorPart;
use slime_torch::{Group, ParamState};
use slime_weights::{StorageSpec, ViewSpec};
use tch::{Kind, Tensor};

use crate::Result;

/// A storage with this rank's share of its state. What is flat has the elements of the storage in their order.
#[derive(Debug)]
pub(super) struct State {
    pub spec: StorageSpec,
    pub param: Tensor,
    /// Elements of every rank.
    pub counts: Vec<usize>,
    /// This rank's of the weights, sharing their memory.
    pub weight_n: Tensor,
    /// f32; `weight_n` itself when that is f32 or f64.
    pub master_n: Tensor,
    pub first_n: Tensor,
    pub second_n: Tensor,
    /// The f32 sum of a bf16 parameter's gradients, of the whole storage.
    pub grad_sum_n: Option<Tensor>,
}

impl State {
    /// Zero moments over `param`, an f32, bf16 or f64 storage.
    pub fn new(spec: &StorageSpec, param: &Tensor, counts: Vec<usize>, group: &Group) -> Result<Self> {
        let whole_n = flat(param)?;
        let weight_n = part(&whole_n, &counts, group.rank())?;
        let is_wide = matches!(param.kind(), Kind::Float | Kind::Double);
        let master_n = if is_wide { weight_n.shallow_clone() } else { weight_n.f_to_kind(Kind::Float)? };
        let (first_n, second_n) = (master_n.f_zeros_like()?, master_n.f_zeros_like()?);
        let grad_sum_n = if is_wide { None } else { Some(whole_n.f_to_kind(Kind::Float)?.f_zeros_like()?) };
        let (spec, param) = (spec.clone(), param.shallow_clone());
        Ok(Self { spec, param, counts, weight_n, master_n, first_n, second_n, grad_sum_n })
    }

    pub fn with<'a>(&'a self, grad: &'a Tensor) -> ParamState<'a> {
        ParamState {
            param: &self.weight_n,
            grad,
            master: &self.master_n,
            first: &self.first_n,
            second: &self.second_n,
        }
    }
}

/// The elements of a storage in one row, sharing its memory.
pub(super) fn flat(param: &Tensor) -> Result<Tensor> {
    Ok(param.f_detach()?.f_view(-1)?)
}

/// The part of `rank`, sharing memory with the flat `whole_n`.
pub(super) fn part(whole_n: &Tensor, counts: &[usize], rank: usize) -> Result<Tensor> {
    let own = own_range(counts, rank);
    Ok(whole_n.f_narrow(0, own.start as i64, own.len() as i64)?)
}

/// Every rank's part of the flat `whole_n`, divided by `counts`, goes to all ranks.
pub(super) fn gather(whole_n: &Tensor, counts: &[usize], group: &Group) -> Result<()> {
    if group.size() > 1 {
        let own_n = part(whole_n, counts, group.rank())?;
        whole_n.shallow_clone().f_copy_(&group.gather_rows(&own_n, counts)?)?;
    }
    Ok(())
}

/// This rank's elements of a storage whose ranks have `counts`.
pub(super) fn own_range(counts: &[usize], rank: usize) -> Range<usize> {
    let start = counts[..rank].iter().sum();
    start..start + counts[rank]
}

/// What the elements `range` of a storage are of its Hugging Face tensors, whose names get `prefix`; each with its view.
pub(crate) fn parts<'a>(
    spec: &'a StorageSpec,
    range: &Range<usize>,
    prefix: &str,
) -> Vec<(TensorPart, &'a ViewSpec)> {
    let part = |view: &'a ViewSpec| {
        let of_view = spec.range(view);
        let (start, end) = (range.start.max(of_view.start), range.end.min(of_view.end));
        let part = || TensorPart {
            tensor: format!("{prefix}{}", view.name),
            shape: view.shape.clone(),
            bounds: view.part.clone(),
            range: start - of_view.start..end - of_view.start,
        };
        (start < end).then(|| (part(), view))
    };
    spec.views.iter().filter_map(part).collect()
}
