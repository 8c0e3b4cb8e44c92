//! What every tool does at its start and its end: logging, signals, threads per rank, outputs, errors to exit codes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod drain;
pub mod exit;
mod failure;
mod generate;
mod logging;
mod output;
mod parse;
mod stacks;
mod start;
mod temporary;
mod threads;
pub mod watchdog;

pub use failure::Failure;
pub use logging::{Verbosity, start_logging};
pub use output::Output;
pub use parse::parse;
pub use start::{report, run};
pub use temporary::temporary_beside;
pub use threads::threads_per_rank;
