//! `algorithm.routing_replay`: which experts tokens go to while training.

use serde::{Deserialize, Serialize};

/// Whose choice of experts training repeats (models with experts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingReplay {
    /// Nobody's: routers choose anew in every pass.
    #[default]
    None,
    /// That of the pass that computes the log-probs before the rollout's first update.
    Recomputed,
    /// That of generation, which samples bring along.
    Rollout,
}
