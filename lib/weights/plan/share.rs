//! What one rank of each stage holds.

use std::ops::Range;

use super::table::{Entry, Kind, ModelTable};
use super::{GRADIENT_BYTES, OPTIMIZER_BYTES, PlanLayout, WEIGHT_BYTES};

/// The share of every rank of one pipeline stage; of those that differ by a row, the largest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageShare {
    /// The layers of the stage, in one or several runs.
    pub layers: Vec<Range<usize>>,
    /// Whether it holds rows of the embedding.
    pub has_embedding: bool,
    /// Whether it holds the final norm and rows of the output head (tied: of the embedding again).
    pub has_head: bool,
    /// Rows of the vocabulary that a rank holds.
    pub vocab_rows: usize,
    /// Query heads of a rank.
    pub heads: usize,
    /// Key and value heads of a rank, some of them on several.
    pub key_value_heads: usize,
    /// Routed experts of a rank in every layer that has some.
    pub experts: usize,
    /// Parameters of a rank.
    pub num_elements: u64,
    /// Of them routed experts, which `dp x cp x tp / (ep x etp)` ranks hold; the others are held by `dp x cp`.
    pub num_expert_elements: u64,
    /// Ranks that hold the same experts, and the same of the rest.
    pub num_copies: [u64; 2],
}

impl StageShare {
    /// Bytes of the weights in bf16.
    pub fn weight_bytes(&self) -> u64 {
        self.num_elements * WEIGHT_BYTES
    }

    /// Bytes of the gradients: bf16 of a micro-batch and the f32 sum of all.
    pub fn gradient_bytes(&self) -> u64 {
        self.num_elements * GRADIENT_BYTES
    }

    /// Bytes of the optimizer, which the ranks that hold the same parameters divide among themselves (`ZeRO-1`).
    pub fn optimizer_bytes(&self) -> u64 {
        let [of_experts, of_others] = self.num_copies;
        let experts = self.num_expert_elements.div_ceil(of_experts);
        let others = (self.num_elements - self.num_expert_elements).div_ceil(of_others);
        (experts + others) * OPTIMIZER_BYTES
    }

    /// Bytes of weights, gradients and optimizer.
    pub fn training_bytes(&self) -> u64 {
        self.weight_bytes() + self.gradient_bytes() + self.optimizer_bytes()
    }
}

/// The shares of all stages.
pub fn stages(table: &ModelTable, layout: PlanLayout) -> Vec<StageShare> {
    let is_tied = !table.entries.iter().any(|entry| entry.kind == Kind::Head);
    let last = layout.pp() - 1;
    let share = |stage: usize| {
        let layers = layout.layers(stage, table.num_layers);
        let is_here = |entry: &&Entry| match (entry.layer, entry.kind) {
            (Some(layer), _) => layers.iter().any(|run| run.contains(&layer)),
            // A tied head on another stage is a second copy of the embedding.
            (None, Kind::Embedding) => stage == 0 || (is_tied && stage == last),
            (None, _) => stage == last,
        };
        let here: Vec<&Entry> = table.entries.iter().filter(is_here).collect();
        let count = |entry: &&Entry| held(entry, table, layout);
        StageShare {
            has_embedding: stage == 0,
            has_head: stage == last,
            vocab_rows: table.vocab_size.div_ceil(layout.tp),
            heads: table.num_heads / layout.tp,
            key_value_heads: table.num_key_value_heads.div_ceil(layout.tp),
            experts: table.num_experts / layout.ep,
            num_elements: here.iter().map(count).sum(),
            num_expert_elements: here.iter().filter(|entry| entry.kind == Kind::Experts).map(count).sum(),
            num_copies: [layout.stage_size() / (layout.ep * layout.etp), layout.cp * layout.dp]
                .map(|num| num as u64),
            layers,
        }
    };
    (0..=last).map(share).collect()
}

/// Elements of an entry that one rank holds.
fn held(entry: &Entry, table: &ModelTable, layout: PlanLayout) -> u64 {
    let tp = layout.tp as u64;
    match entry.kind {
        Kind::Embedding | Kind::Head => {
            let width = entry.num_elements / table.vocab_size.max(1) as u64;
            table.vocab_size.div_ceil(layout.tp) as u64 * width
        }
        Kind::Attention | Kind::Mlp => entry.num_elements.div_ceil(tp),
        Kind::KeyValue => {
            let heads = table.num_key_value_heads.max(1);
            entry.num_elements / heads as u64 * heads.div_ceil(layout.tp) as u64
        }
        Kind::Experts => (entry.num_elements / layout.ep as u64).div_ceil(layout.etp as u64),
        Kind::Whole | Kind::FinalNorm => entry.num_elements,
    }
}
