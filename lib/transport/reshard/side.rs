//! One side of a transfer: which boxes of which tensors every rank of a layout holds.

use std::collections::HashMap;

use slime_comm::{Axis, Layout, Mesh};
use slime_config::{HfConfig, TensorBox};
use slime_weights::{Place, PlanLayout, Share, StorageSpec, split, storages};

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
    let PlanLayout { tp, pp, cp, ep, etp, dp } = layout;
    let mesh = Mesh::new(Layout { tp, pp, cp, dp, ep, etp }, layout.world_size())?;
    let stages = layout.layers(config.num_hidden_layers);
    let specs = storages(config);
    let mut known: HashMap<[usize; 4], Vec<Held>> = HashMap::new();
    let of_rank = |rank: usize| {
        let [stage, tp, ep, etp] = [Axis::Pp, Axis::Tp, Axis::Ep, Axis::Etp]
            .map(|axis| Share { rank: mesh.coordinate(axis, rank), size: mesh.axis_size(axis) });
        let own = || {
            let place = Place { tp, ep, etp };
            let is_here = |spec: &&StorageSpec| match layer_of(&spec.name) {
                Some(layer) => stages[stage.rank].contains(&layer),
                None if spec.name == "embed" => {
                    stage.rank == 0 || config.tie_word_embeddings && stage.rank + 1 == stage.size
                }
                None => stage.rank + 1 == stage.size,
            };
            let cut = |spec: &StorageSpec| split(spec.clone(), config, place).views;
            let views = specs.iter().filter(is_here).flat_map(cut);
            views.map(|view| Held { tensor: tensors.numbers[&view.name], part: view.part }).collect()
        };
        known.entry([stage.rank, tp.rank, ep.rank, etp.rank]).or_insert_with(own).clone()
    };
    Ok((0..mesh.size()).map(of_rank).collect())
}

/// The layer that a storage such as `layers.3.qkv` belongs to.
fn layer_of(storage: &str) -> Option<usize> {
    storage.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}
