//! `slime-stat`: a run's metrics in, a table, curves or JSON out.

mod args;
mod read_answers;
mod read_metrics;
mod show;
mod watch;
mod write_answers;
mod write_curves;
mod write_json;
mod write_table;

use std::process::ExitCode;

fn main() -> ExitCode {
    slime_cli::run("slime-stat", show::main)
}
