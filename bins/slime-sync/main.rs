//! slime-sync: looks after the way of the weights: plans and measures it, verifies published versions, pushes them elsewhere,
//! and checks the nodes of a job before it starts.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod bench;
mod plan;
mod preflight;
mod read_publications;
mod verify;
mod write_copy;

use std::process::ExitCode;

use args::{Args, Command};
use slime_cli::Failure;

fn main() -> ExitCode {
    slime_cli::run("slime-sync", || {
        let args: Args = slime_cli::parse()?;
        slime_cli::start_logging(args.verbosity);
        match args.command {
            Command::Preflight(command) => preflight::run(&command),
            Command::Plan(command) => plan::run(&command),
            Command::Verify(c) => verify::verify(&c.path, c.version),
            Command::Bench(command) => bench::bench(&command),
            Command::Push(c) => write_copy::push(&c.run, &c.dst, c.version),
        }
    })
}

/// An error of the transport as the failure of the tool.
#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn failure(error: slime_transport::Error) -> Failure {
    Failure::from_error(error.exit_code(), &error)
}
