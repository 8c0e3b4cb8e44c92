//! Which ranks add up the gradient of what and share its optimizer state, and which of them counts it in the norm.
//!
//! A loss is a sum over all samples, its denominators applied, so gradients are sums over ranks, never means. A part of a
//! tensor that several tensor-parallel ranks hold is summed over them first, since each saw its share of tokens or heads;
//! then everything over the ranks that hold the same storage and computed other samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use slime_comm::{Axis, Communicator, Op};
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
    tp_rank: usize,
    /// The first and the last stage, where both hold the embedding.
    embedding: Option<Group>,
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
            return Ok(Self::unsplit(&all));
        };
        let (mesh, rank) = (parallel.mesh(), world.rank());
        let group = |axis| Ok::<_, crate::Error>(Group::new(mesh.split(&**world, axis)?, device)?);
        let (dense, experts) = (group(Axis::DpCp)?, group(Axis::Edp)?);
        let tp_rank = mesh.coordinate(Axis::Tp, rank);
        let copies = copies(world, params, parallel)?;
        let embedding = embedding(world, params, parallel)?;
        Ok(Self { world: Some(all), dense, experts, copies, tp_rank, embedding })
    }

    /// Of a model that every rank holds whole.
    pub fn unsplit(all: &Group) -> Self {
        let (dense, experts) = (all.clone(), all.clone());
        Self { world: None, dense, experts, copies: BTreeMap::new(), tp_rank: 0, embedding: None }
    }

    /// The ranks that hold the same of a storage and computed other samples.
    pub fn of(&self, spec: &StorageSpec) -> &Group {
        if spec.is_expert { &self.experts } else { &self.dense }
    }

    /// All ranks, where the model is split.
    pub fn world(&self) -> Option<&Group> {
        self.world.as_ref()
    }

    /// Adds up, in place, the gradient of what tensor-parallel ranks hold alike and saw other tokens or heads of.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum_copies(&self, spec: &StorageSpec, grad: &Tensor) -> Result<()> {
        // Neighbouring views that as many ranks hold are one message.
        for views in spec.views.chunk_by(|a, b| a.copies == b.copies) {
            let (Some(first), Some(group)) = (views.first(), self.copies.get(&views[0].copies)) else {
                continue;
            };
            let rows: usize = views.iter().map(|view| spec.num_rows(view)).sum();
            let mut part = grad.f_narrow(0, first.offset_rows as i64, rows as i64)?;
            group.all_reduce(&mut part, Op::Sum)?;
        }
        if let (Some(group), "embed") = (&self.embedding, spec.name.as_str()) {
            group.all_reduce(&mut grad.shallow_clone(), Op::Sum)?;
        }
        Ok(())
    }

    /// Whether this rank is the first of the tensor-parallel ranks, and of the stages, that hold a view alike, which counts it in the norm and
    /// saves it; the ranks of [`Self::of`] have shares of it.
    pub fn is_first(&self, spec: &StorageSpec, view: &ViewSpec) -> bool {
        let is_copy = spec.name == "embed" && self.embedding.as_ref().is_some_and(|group| group.rank() > 0);
        spec.is_expert || self.tp_rank.is_multiple_of(view.copies) && !is_copy
    }
}

/// The ranks of the first and of the last stage that hold the same rows of the embedding, where both do; on the stages between
/// them a group of one.
fn embedding(
    world: &Arc<dyn Communicator>,
    params: &ParamStore,
    parallel: &Parallel,
) -> Result<Option<Group>> {
    let (rank, size) = (world.rank(), world.size());
    let num_stages = parallel.stage(rank).pipeline.num_stages;
    if num_stages == 1 || !params.is_embedding_copied() {
        return Ok(None);
    }
    let of_stage = size / num_stages;
    let stage = parallel.stage(rank);
    let colour = if stage.is_first() || stage.is_last() { rank % of_stage } else { of_stage + rank };
    let comm = world.split(colour as u32, rank as u32)?;
    Ok(Some(Group::new(comm, params.device())?))
}

/// The groups of tensor-parallel neighbours that hold the same parts, for every number of them that occurs.
fn copies(
    world: &Arc<dyn Communicator>,
    params: &ParamStore,
    parallel: &Parallel,
) -> Result<BTreeMap<usize, Group>> {
    let group = |size: usize| {
        let first = world.rank() - parallel.mesh().coordinate(Axis::Tp, world.rank()) % size;
        let comm = world.split(first as u32, world.rank() as u32)?;
        Ok((size, Group::new(comm, params.device())?))
    };
    params.copy_counts().into_iter().filter(|size| *size > 1).map(group).collect()
}
