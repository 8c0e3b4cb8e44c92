//! One side of a transfer: which boxes of which tensors every rank of a layout holds.

use std::collections::HashMap;

use slime_comm::{Axis, Layout, Mesh};
use slime_config::{HfConfig, PipelineStage, TensorBox};
use slime_weights::{Place, PlanLayout, Share, StorageSpec, is_of_stage, split, storages};

use crate::Result;

/// A tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Its Hugging Face name.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// Whether it is f32 whatever the type of the model is.
    pub is_f32: bool,
}

/// All tensors of a model, and their numbers by name.
pub(super) struct Tensors {
    pub(super) list: Vec<PlannedTensor>,
    numbers: HashMap<String, usize>,
}

impl Tensors {
    pub(super) fn of(specs: &[StorageSpec]) -> Self {
        let (mut list, mut numbers) = (Vec::new(), HashMap::new());
        for spec in specs {
            for view in &spec.views {
                numbers.insert(view.name.clone(), list.len());
                list.push(PlannedTensor {
                    name: view.name.clone(),
                    shape: view.shape.clone(),
                    is_f32: spec.is_f32,
                });
            }
        }
        Self { list, numbers }
    }
}

/// A box of the tensor of this number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) tensor: usize,
    pub(super) part: TensorBox,
}

/// What each rank of `layout` holds, in the order of its storages.
///
/// A pipeline stage has equal numbers of layers, the first stages one more; the first has the embedding, the last the final
/// norm and the head, which of a model with tied embeddings is the embedding once more.
pub(super) fn held_by_rank(
    config: &HfConfig,
    tensors: &Tensors,
    layout: PlanLayout,
) -> Result<Vec<Vec<Held>>> {
    let (PlanLayout { tp, cp, ep, etp, dp, pipeline }, pp) = (layout, layout.pp());
    let mesh = Mesh::new(Layout { tp, pp, cp, dp, ep, etp }, layout.world_size())?;
    let specs = storages(config);
    let mut known: HashMap<[usize; 4], Vec<Held>> = HashMap::new();
    let of_rank = |rank: usize| {
        let share = |axis| Share { rank: mesh.coordinate(axis, rank), size: mesh.axis_size(axis) };
        let [tp, ep, etp] = [Axis::Tp, Axis::Ep, Axis::Etp].map(share);
        let stage = PipelineStage { rank: mesh.coordinate(Axis::Pp, rank), pipeline };
        let own = || {
            let is_here = |spec: &&StorageSpec| is_of_stage(spec, config, stage);
            let cut = |spec: &StorageSpec| split(spec.clone(), config, Place { tp, ep, etp, stage }).views;
            let views = specs.iter().filter(is_here).flat_map(cut);
            views.map(|view| Held { tensor: tensors.numbers[&view.name], part: view.part }).collect()
        };
        known.entry([stage.rank, tp.rank, ep.rank, etp.rank]).or_insert_with(own).clone()
    };
    Ok((0..mesh.size()).map(of_rank).collect())
}
