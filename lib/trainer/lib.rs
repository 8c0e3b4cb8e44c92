//! Training: advantages, losses, packing with shared prompts, the optimizer, and the step over data-parallel ranks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advantage;
mod error;
pub mod flops;
#[cfg(test)]
mod golden;
pub mod kl;
pub mod log_probs;
pub mod loss_reducer;
mod metrics;
mod observation;
pub mod optimizer;
pub mod packing;
pub mod partition;
pub mod policy_loss;
pub mod schedule;
mod train_step;
mod trainer;

pub use error::{Error, Result};
pub use metrics::StepMetrics;
pub use observation::{LoggedSample, Observation, Report};
pub use optimizer::Optimizer;
pub use packing::{MicroBatch, Place};
pub use trainer::{Scored, Settings, Trainer};
