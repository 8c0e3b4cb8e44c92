//! What tools tell about a run: numbers (JSON lines, `TensorBoard`, Prometheus), spans, and warnings that save runs.
//!
//! It knows names and series, not how anything is computed. One name for one number: [`names`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod append;
pub mod cost;
mod error;
pub mod evaluation;
pub mod event_file;
mod lanes;
pub mod names;
pub mod pass_rate;
mod profile;
pub mod prometheus;
pub mod rollout;
mod row;
pub mod rules;
mod sink;
pub mod trace;
mod warnings;

pub use error::{Error, Result};
pub use lanes::Lanes;
pub use profile::Profile;
pub use row::Row;
pub use sink::Sink;
pub use trace::Trace;
pub use warnings::{DeadSources, KINDS, Warning, Watch};
