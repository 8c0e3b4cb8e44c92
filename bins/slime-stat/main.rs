//! `slime-stat`: a run's metrics or samples in, tables, curves or JSON out.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod archive;
mod args;
mod read_answers;
mod read_attempts;
mod read_job;
mod read_metrics;
mod read_samples;
mod show;
mod summarise;
mod watch;
mod write_answers;
mod write_curves;
mod write_json;
mod write_samples;
mod write_summary;
mod write_table;

use std::process::ExitCode;

fn main() -> ExitCode {
    slime_cli::run("slime-stat", show::main)
}
