//! What the optimizer keeps of one storage.

use std::ops::Range;

use slime_config::{TensorBox, TensorPart};
use slime_torch::ParamState;
use slime_weights::StorageSpec;
use tch::{Kind, Tensor};

use super::group::{Group, part};
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
    /// f32; `weight_n` itself when that is f32.
    pub master_n: Tensor,
    pub first_n: Tensor,
    pub second_n: Tensor,
    /// The f32 sum of a bf16 parameter's gradients, of the whole storage.
    pub grad_sum_n: Option<Tensor>,
}

impl State {
    /// Zero moments over `param`, an f32 or bf16 storage.
    pub fn new(spec: &StorageSpec, param: &Tensor, counts: Vec<usize>, group: &Group) -> Result<Self> {
        let whole_n = flat(param)?;
        let weight_n = part(&whole_n, &counts, group.rank())?;
        let is_f32 = param.kind() == Kind::Float;
        let master_n = if is_f32 { weight_n.shallow_clone() } else { weight_n.f_to_kind(Kind::Float)? };
        let (first_n, second_n) = (master_n.f_zeros_like()?, master_n.f_zeros_like()?);
        let grad_sum_n = if is_f32 { None } else { Some(whole_n.f_to_kind(Kind::Float)?.f_zeros_like()?) };
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

/// This rank's elements of a storage whose ranks have `counts`.
pub(super) fn own_range(counts: &[usize], rank: usize) -> Range<usize> {
    let start = counts[..rank].iter().sum();
    start..start + counts[rank]
}

/// What the elements `range` of a storage are of its Hugging Face tensors, whose names get `prefix`.
pub(crate) fn parts(spec: &StorageSpec, range: &Range<usize>, prefix: &str) -> Vec<TensorPart> {
    let part = |view: &slime_weights::ViewSpec| {
        let of_view = spec.range(view);
        let (start, end) = (range.start.max(of_view.start), range.end.min(of_view.end));
        (start < end).then(|| TensorPart {
            tensor: format!("{prefix}{}", view.name),
            shape: view.shape.clone(),
            bounds: TensorBox::whole(&view.shape),
            range: start - of_view.start..end - of_view.start,
        })
    };
    spec.views.iter().filter_map(part).collect()
}
