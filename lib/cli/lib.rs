//! What every tool does at its start and its end: logging, signals, threads per rank, errors to exit codes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod drain;
pub mod exit;
mod failure;
mod logging;
mod parse;
mod start;
mod threads;

pub use failure::Failure;
pub use logging::{Verbosity, start_logging};
pub use parse::parse;
pub use start::run;
pub use threads::threads_per_rank;
