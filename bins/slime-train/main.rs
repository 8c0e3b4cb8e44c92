//! slime-train: updates the policy from samples with rewards.

mod args;
mod budget;
mod checkpoint;
mod follow;
mod observe;
mod published;
mod read_carried;
mod read_manifest;
mod read_samples;
mod share;
mod train;
mod write_dump;
mod write_log_probs;
mod write_metrics;
mod write_version;
mod write_weights;

use std::process::ExitCode;

use args::Args;

fn main() -> ExitCode {
    slime_cli::run("slime-train", || {
        let args: Args = slime_cli::parse()?;
        slime_cli::start_logging(args.verbosity);
        train::run(&args).inspect_err(|_| slime_comm::Placement::let_rank_0_speak())
    })
}

/// A library error as the failure of the tool.
macro_rules! failure {
    () => {
        |error| slime_cli::Failure::from_error(error.exit_code(), &error)
    };
}
use failure;
