//! Advantages: pure functions of rewards, values and log-probs, one file for each family of estimators.
//!
//! Numbers of one sample are slices over its trained tokens in their order; sums are taken in f64.

mod distillation;
mod gae;
mod group;
mod reinforce;
mod whiten;

pub use distillation::distillation;
pub use gae::gae;
pub use group::{grpo, grpo_process, rloo};
pub use reinforce::{reinforce_plus_plus, reinforce_plus_plus_baseline};
pub use whiten::whiten;
