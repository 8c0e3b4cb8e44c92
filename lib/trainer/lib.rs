//! Training: advantages, losses, packing with shared prompts, the optimizer, and the step over data-parallel ranks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advantage;
pub mod budget;
mod critic;
mod error;
mod estimate;
mod fixed;
pub mod flops;
mod fp8;
#[cfg(test)]
mod golden;
mod gradient_groups;
pub mod log_probs;
pub mod loss;
mod metrics;
mod micro_batch;
mod mtp;
mod objective;
mod observation;
pub mod optimizer;
mod out_of_memory;
pub mod packing;
pub mod partition;
mod pipeline;
mod plan;
mod policy_objective;
mod prepared;
mod row_share;
pub mod schedule;
mod scored;
mod settings;
mod state;
mod state_reader;
mod step_plan;
mod tally;
mod train_step;
mod trainer;

pub use error::{Error, NotFinite, Result};
pub use metrics::StepMetrics;
pub use micro_batch::{MicroBatch, Place, Rows, Source};
pub use observation::{LoggedSample, Observation, Report};
pub use optimizer::{Buffer, Gradients, Optimizer};
pub use scored::Scored;
pub use settings::{SamplingPenalties, Settings};
pub use state::Progress;
pub use state_reader::StateReader;
pub use step_plan::{Sent, StepPlan};
pub use trainer::{Roles, Trainer};
