//! The layout of ranks that a plan is for.

use std::ops::Range;
use std::path::Path;

use slime_config::Pipeline;

use super::table::ModelTable;
use crate::{Error, Result};

/// Ranks along every axis, each at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanLayout {
    /// Ranks that divide every matrix.
    pub tp: usize,
    /// Stages of the pipeline, and the layers of each.
    pub pipeline: Pipeline,
    /// Ranks that divide a sequence.
    pub cp: usize,
    /// Ranks of a stage that divide the experts.
    pub ep: usize,
    /// Ranks that divide the width of each expert.
    pub etp: usize,
    /// Copies of all of it.
    pub dp: usize,
}

impl PlanLayout {
    /// One rank.
    pub const SINGLE: Self = Self { tp: 1, pipeline: Pipeline::WHOLE, cp: 1, ep: 1, etp: 1, dp: 1 };

    /// Ranks of the world: `ep` and `etp` take their ranks from the others of a stage.
    pub fn world_size(&self) -> usize {
        self.tp * self.pp() * self.cp * self.dp
    }

    /// Ranks of a stage.
    pub fn stage_size(&self) -> usize {
        self.tp * self.cp * self.dp
    }

    /// Stages of the pipeline.
    pub fn pp(&self) -> usize {
        self.pipeline.num_stages
    }

    /// The layers of one stage, in one or several runs.
    pub fn layers(&self, stage: usize, num_layers: usize) -> Vec<Range<usize>> {
        self.pipeline.of_stage(stage, num_layers)
    }

    /// # Errors
    /// An axis does not divide what it should.
    pub(super) fn check(&self, table: &ModelTable, path: &Path) -> Result<()> {
        let refuse = |axis: &str, size: usize, expected: String| {
            let hint = format!("{expected}, got {size}");
            Err(Error::Unsupported {
                path: path.to_owned(),
                what: format!("{axis} {size} for this model"),
                hint,
            })
        };
        let (heads, kv_heads) = (table.num_heads, table.num_key_value_heads);
        if !heads.is_multiple_of(self.tp) {
            return refuse("tp", self.tp, format!("tp divides the {heads} heads"));
        }
        if kv_heads > 0 && !kv_heads.is_multiple_of(self.tp) && !self.tp.is_multiple_of(kv_heads) {
            return refuse(
                "tp",
                self.tp,
                format!("tp divides the {kv_heads} heads of keys and values or is a multiple of them"),
            );
        }
        if let Some(problem) = self.pipeline.misfit(table.num_layers) {
            let what = problem.trim_start_matches("parallel.").to_owned();
            let hint = format!("at most one run for each of the {} layers", table.num_layers);
            return Err(Error::Unsupported { path: path.to_owned(), what, hint });
        }
        if self.ep > 1 && (table.num_experts == 0 || !table.num_experts.is_multiple_of(self.ep)) {
            return refuse("ep", self.ep, format!("ep divides the {} experts", table.num_experts));
        }
        if self.etp > 1 && table.num_experts == 0 {
            return refuse("etp", self.etp, "etp divides experts, of which there are none".to_owned());
        }
        if !self.stage_size().is_multiple_of(self.ep * self.etp) {
            return refuse(
                "ep x etp",
                self.ep * self.etp,
                format!("ep x etp divides the {} ranks of a stage (tp x cp x dp)", self.stage_size()),
            );
        }
        Ok(())
    }
}
