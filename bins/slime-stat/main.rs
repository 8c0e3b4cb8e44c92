//! `slime-stat`: a run's metrics or samples in, tables, curves, JSON, a live view, a report or exports out.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod archive;
mod args;
mod axis;
mod downsample;
mod export;
mod names;
mod read_answers;
mod read_attempts;
mod read_engines;
mod read_job;
mod read_metrics;
mod read_run;
mod read_samples;
mod read_steps;
mod read_trace;
mod read_warnings;
mod report;
mod show;
mod standing;
mod summarise;
mod verdict;
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
