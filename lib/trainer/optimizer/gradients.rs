//! Gradients summed over the ranks, each rank with its share of them.

use std::sync::Arc;

use slime_weights::StorageSpec;
use tch::{Device, Kind, Tensor};

use super::state::{gather, part};
use crate::Result;
use crate::gradient_groups::GradientGroups;

/// The gradient of one storage.
#[derive(Debug)]
pub(super) struct Gradient {
    pub spec: StorageSpec,
    pub size: Vec<i64>,
    /// Elements of every rank.
    pub counts: Vec<usize>,
    /// f32 (f64 of an f64 model); the sum over the ranks in this rank's part, its own addend elsewhere.
    pub flat_n: Tensor,
}

/// The gradients of an optimizer step, summed over the ranks and not clipped.
#[derive(Debug)]
pub struct Gradients {
    pub(super) groups: Arc<GradientGroups>,
    pub(super) all: Vec<Gradient>,
}

impl Gradients {
    /// This rank's shares, flat, one for each storage; some may be empty.
    pub(super) fn shares(&self) -> Result<Vec<Tensor>> {
        self.all
            .iter()
            .map(|grad| part(&grad.flat_n, &grad.counts, self.groups.of(&grad.spec).rank()))
            .collect()
    }

    pub(super) fn device(&self) -> Device {
        self.all.first().map_or(Device::Cpu, |grad| grad.flat_n.device())
    }

    /// Copies of the gradients of all ranks with the same storages, by storage name; of a split model this rank's part of it.
    /// Collective: every rank calls it, or none.
    ///
    /// # Errors
    /// A failed collective.
    pub fn whole(&self) -> Result<Vec<(String, Tensor)>> {
        let whole = |grad: &Gradient| {
            let whole_n = grad.flat_n.f_empty_like()?;
            whole_n.shallow_clone().f_copy_(&grad.flat_n)?;
            gather(&whole_n, &grad.counts, self.groups.of(&grad.spec))?;
            Ok((grad.spec.name.clone(), whole_n.f_view(grad.size.as_slice())?))
        };
        self.all.iter().map(whole).collect()
    }
}

/// A storage's flat f32 gradient; zeros where none arrived.
pub(super) fn flat_gradient(param: &Tensor) -> Result<Tensor> {
    let grad = param.f_grad()?;
    if grad.defined() {
        return Ok(grad.f_contiguous()?.f_view(-1)?);
    }
    let kind = if param.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    Ok(Tensor::f_zeros([param.numel() as i64], (kind, param.device()))?)
}
