//! What the optimizer keeps of one storage.

use std::ops::Range;

use slime_config::TensorPart;
use slime_torch::{AdamW, Group, ParamState, adamw_step};
use slime_weights::{StorageSpec, ViewSpec};
use tch::{Device, Kind, Tensor};

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
    /// f32; `weight_n` itself when that is f32 or f64 and the state is not on the host.
    pub master_n: Tensor,
    pub first_n: Tensor,
    pub second_n: Tensor,
    /// The f32 sum of a bf16 parameter's gradients, of the whole storage.
    pub grad_sum_n: Option<Tensor>,
}

impl State {
    /// Zero moments over `param`, an f32, bf16 or f64 storage; beside it, or in the memory of the host.
    pub fn new(
        spec: &StorageSpec,
        param: &Tensor,
        counts: Vec<usize>,
        group: &Group,
        is_offloaded: bool,
    ) -> Result<Self> {
        let whole_n = flat(param)?;
        let weight_n = part(&whole_n, &counts, group.rank())?;
        let is_wide = matches!(param.kind(), Kind::Float | Kind::Double);
        let master_n = match (is_offloaded, is_wide) {
            (true, _) => on_host(&weight_n)?,
            (false, true) => weight_n.shallow_clone(),
            (false, false) => weight_n.f_to_kind(Kind::Float)?,
        };
        let zeros = || pinned(&master_n.f_zeros_like()?, param.device());
        let (first_n, second_n) = if is_offloaded {
            (zeros()?, zeros()?)
        } else {
            (master_n.f_zeros_like()?, master_n.f_zeros_like()?)
        };
        let grad_sum_n = if is_wide { None } else { Some(whole_n.f_to_kind(Kind::Float)?.f_zeros_like()?) };
        let (spec, param) = (spec.clone(), param.shallow_clone());
        Ok(Self { spec, param, counts, weight_n, master_n, first_n, second_n, grad_sum_n })
    }

    pub fn with<'a>(&'a self, grad: &'a Tensor) -> ParamState<'a> {
        self.over(&self.weight_n, grad)
    }

    /// The update where masters and moments are: `grad` is brought there, and the new weights back.
    pub fn update_on_host(&self, grad: &Tensor, adamw: &AdamW, step: u64, scale: f64) -> Result<()> {
        let grad = grad.f_to_device(Device::Cpu)?;
        adamw_step(&[self.over(&self.master_n, &grad)], adamw, step, scale)?;
        tch::no_grad(|| self.weight_n.shallow_clone().f_copy_(&self.master_n))?;
        Ok(())
    }

    fn over<'a>(&'a self, param: &'a Tensor, grad: &'a Tensor) -> ParamState<'a> {
        ParamState { param, grad, master: &self.master_n, first: &self.first_n, second: &self.second_n }
    }
}

/// A copy in f32 (f64 of f64) in the memory of the host.
fn on_host(weight_n: &Tensor) -> Result<Tensor> {
    let wide = if weight_n.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    let mut copy_n = Tensor::f_empty(weight_n.size(), (wide, Device::Cpu))?;
    copy_n.f_copy_(weight_n)?;
    pinned(&copy_n, weight_n.device())
}

/// The same in pages that `device` copies from and to by itself; on a CPU as it is.
fn pinned(host_n: &Tensor, device: Device) -> Result<Tensor> {
    Ok(if device.is_cuda() { host_n.f_pin_memory(device)? } else { host_n.shallow_clone() })
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
