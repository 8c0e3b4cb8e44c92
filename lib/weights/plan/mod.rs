//! What a model comes to on a layout of ranks, from its `config.json` alone: parameters, bytes for each rank, who holds what.
//! No tensor is read or allocated.
//!
//! The axes are those of Megatron: `tp` divides matrices, `pp` layers, `cp` sequences, `dp` samples; `ep` divides the experts
//! among the ranks of a pipeline stage, `etp` the width of each of them.

mod latent;
mod layout;
mod share;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use layout::PlanLayout;
pub use share::StageShare;

use crate::Result;
use table::{Entry, ModelTable};

/// Bytes of a weight in bf16.
const WEIGHT_BYTES: u64 = 2;
/// Bytes of a gradient: bf16 of a micro-batch and the f32 sum of all.
const GRADIENT_BYTES: u64 = 6;
/// Bytes that `AdamW` keeps: a copy of the weight in f32, and two moments.
const OPTIMIZER_BYTES: u64 = 12;

/// The plan of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The `model_type`.
    pub model_type: String,
    /// The layout that it is for.
    pub layout: PlanLayout,
    /// Parameters of the layers, embedding and output head.
    pub num_parameters: u64,
    /// Those that a token meets: all but the experts that it is not sent to.
    pub num_activated: u64,
    /// Parameters of the layers that predict further tokens, with the copies of embedding and head in their checkpoints.
    pub num_mtp_parameters: u64,
    /// Parameters by what they are for: name and number.
    pub by_kind: Vec<(&'static str, u64)>,
    /// Bytes that a token takes in the KV cache of one engine, all its ranks together.
    pub kv_bytes_per_token: u64,
    /// What the ranks of each pipeline stage hold.
    pub stages: Vec<StageShare>,
}

impl Plan {
    /// The plan of the model that the text of a `config.json` describes; `path` names it in errors.
    ///
    /// # Errors
    /// The configuration is not usable, or the layout does not divide the model.
    pub fn new(config: &str, path: &Path, layout: PlanLayout) -> Result<Self> {
        let table = ModelTable::parse(config, path)?;
        layout.check(&table, path)?;
        let sum = |of: &dyn Fn(&Entry) -> u64| table.entries.iter().map(of).sum::<u64>();
        let mut by_kind: Vec<(&'static str, u64)> = Vec::new();
        for entry in &table.entries {
            match by_kind.iter_mut().find(|(kind, _)| *kind == entry.kind.name()) {
                Some((_, num)) => *num += entry.num_elements,
                None => by_kind.push((entry.kind.name(), entry.num_elements)),
            }
        }
        Ok(Self {
            num_parameters: sum(&|entry| entry.num_elements),
            num_activated: sum(&|entry| table.activated(entry)),
            num_mtp_parameters: table.num_mtp_parameters,
            by_kind,
            kv_bytes_per_token: table.kv_elements_per_token * WEIGHT_BYTES,
            stages: share::stages(&table, layout),
            model_type: table.model_type,
            layout,
        })
    }

    /// The rank that holds most, for training: its stage.
    pub fn largest_stage(&self) -> Option<&StageShare> {
        self.stages.iter().max_by_key(|stage| stage.num_elements)
    }

    /// The lines that a `--dry-run` shows.
    pub fn lines(&self) -> Vec<String> {
        let billions = |num: u64| format!("{:.3} billion", num as f64 / 1e9);
        let mut lines = vec![format!(
            "{}: {} parameters, {} of them activated by a token",
            self.model_type,
            billions(self.num_parameters),
            billions(self.num_activated)
        )];
        if let Some(stage) = self.largest_stage() {
            lines.push(format!(
                "the largest rank holds {} parameters, in bf16: {} to train without activations, {} to generate without the KV cache",
                billions(stage.num_elements),
                gib(stage.training_bytes()),
                gib(stage.weight_bytes())
            ));
        }
        lines
    }
}

/// What a `--dry-run` says of the model in the directory `model`, as comments of a TOML; nothing where no `config.json` is.
///
/// # Errors
/// The configuration is not usable, or the layout does not divide the model.
pub fn dry_run_comment(model: &Path, layout: PlanLayout) -> Result<String> {
    let path = model.join("config.json");
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(String::new()) };
    let lines = Plan::new(&text, &path, layout)?.lines();
    Ok(lines.iter().map(|line| format!("# {line}\n")).collect::<Vec<_>>().concat())
}

/// Bytes for people.
pub fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}
