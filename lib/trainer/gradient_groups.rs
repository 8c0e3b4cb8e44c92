//! Which ranks add up the gradient of what, and which of them counts it in the norm.
//!
//! A loss is a sum over all samples, its denominators applied, so gradients are sums over ranks, never means. A part of a
//! tensor that several tensor-parallel ranks hold is summed over them first, since each saw its share of tokens or heads;
//! then everything over the ranks that hold the same storage and computed other samples.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slime_comm::{Axis, Collectives, Communicator, Op};
use slime_model::{Parallel, ParamStore};
use slime_torch::Group;
use slime_weights::{StorageSpec, ViewSpec};
use tch::Tensor;

use crate::Result;

/// The groups of a rank.
#[derive(Debug)]
pub(crate) struct GradientGroups {
    /// All ranks, where the model is split.
    world: Option<Group>,
    /// Ranks with other samples and the same dense parameters.
    dense: Group,
    /// Ranks with other samples and the same experts.
    experts: Group,
    /// By their number, the neighbours that hold the same parts.
    copies: BTreeMap<usize, Group>,
    /// Whether this is the first of the ranks that hold the same dense parameters, and the first of those with the same
    /// experts.
    is_first: [bool; 2],
    tp_rank: usize,
}

impl GradientGroups {
    /// Collective over `world`: the groups of a model with these parameters.
    ///
    /// # Errors
    /// Ranks that cannot meet.
    pub fn new(world: &Arc<dyn Communicator>, params: &ParamStore) -> Result<Self> {
        let device = params.device();
        let all = Group::new(world.clone(), device)?;
        let Some(parallel) = params.parallel() else {
            let (dense, experts, copies) = (all.clone(), all, BTreeMap::new());
            return Ok(Self { world: None, dense, experts, copies, is_first: [true; 2], tp_rank: 0 });
        };
        let (mesh, rank) = (parallel.mesh(), world.rank());
        let group = |axis| Ok::<_, crate::Error>(Group::new(mesh.split(&**world, axis)?, device)?);
        let (dense, experts) = (group(Axis::DpCp)?, group(Axis::Edp)?);
        let is_first = [Axis::DpCp, Axis::Edp].map(|axis| mesh.coordinate(axis, rank) == 0);
        let tp_rank = mesh.coordinate(Axis::Tp, rank);
        let copies = copies(world, params, parallel)?;
        Ok(Self { world: Some(all), dense, experts, copies, is_first, tp_rank })
    }

    /// Adds up the gradient of a storage over all ranks that have a part of it, in place.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, spec: &StorageSpec, grad: &mut Tensor) -> Result<()> {
        if !spec.is_expert {
            self.sum_copies(spec, grad)?;
        }
        let group = if spec.is_expert { &self.experts } else { &self.dense };
        Ok(group.all_reduce(grad, Op::Sum)?)
    }

    fn sum_copies(&self, spec: &StorageSpec, grad: &Tensor) -> Result<()> {
        // Neighbouring views that as many ranks hold are one message.
        for views in spec.views.chunk_by(|a, b| a.copies == b.copies) {
            let (Some(first), Some(group)) = (views.first(), self.copies.get(&views[0].copies)) else {
                continue;
            };
            let rows: usize = views.iter().map(|view| spec.num_rows(view)).sum();
            let mut part = grad.f_narrow(0, first.offset_rows as i64, rows as i64)?;
            group.all_reduce(&mut part, Op::Sum)?;
        }
        Ok(())
    }

    /// The Euclidean norm of the gradients of all parameters of the whole model, each counted once; the same on all ranks.
    ///
    /// # Errors
    /// A failed collective.
    pub fn norm<'a>(&self, grads: impl IntoIterator<Item = (&'a StorageSpec, &'a Tensor)>) -> Result<f64> {
        let Some(world) = &self.world else {
            return Ok(slime_torch::global_norm(grads.into_iter().map(|(_, grad)| grad))?);
        };
        let mut own = Vec::new();
        for (spec, grad) in grads {
            for view in spec.views.iter().filter(|view| self.counts(spec, view)) {
                own.push(grad.f_narrow(0, view.offset_rows as i64, spec.num_rows(view) as i64)?);
            }
        }
        let norm = slime_torch::global_norm(&own)?;
        let mut square = [norm * norm];
        world.comm().all_reduce(&mut square, Op::Sum)?;
        Ok(square[0].sqrt())
    }

    fn counts(&self, spec: &StorageSpec, view: &ViewSpec) -> bool {
        if spec.is_expert {
            return self.is_first[1];
        }
        self.is_first[0] && self.tp_rank.is_multiple_of(view.copies)
    }
}

/// The groups of tensor-parallel neighbours that hold the same parts, for every number of them that occurs.
fn copies(
    world: &Arc<dyn Communicator>,
    params: &ParamStore,
    parallel: &Parallel,
) -> Result<BTreeMap<usize, Group>> {
    let sizes: BTreeSet<usize> = params
        .trained()
        .flat_map(|(spec, _)| &spec.views)
        .map(|view| view.copies)
        .filter(|n| *n > 1)
        .collect();
    let group = |size: usize| {
        let first = world.rank() - parallel.mesh().coordinate(Axis::Tp, world.rank()) % size;
        let comm = world.split(first as u32, world.rank() as u32)?;
        Ok((size, Group::new(comm, params.device())?))
    };
    sizes.into_iter().map(group).collect()
}
