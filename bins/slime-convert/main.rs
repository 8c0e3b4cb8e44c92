//! slime-convert: brings checkpoints into weight directories and out again, shows and compares them.

mod args;
mod diff;
mod inspect;
mod read_weights;
mod write_weights;

use std::process::ExitCode;

use args::{Args, Command};
use slime_cli::Failure;

fn main() -> ExitCode {
    slime_cli::run("slime-convert", || {
        let args: Args = slime_cli::parse()?;
        slime_cli::start_logging(args.verbosity);
        match args.command {
            Command::Import(c) => write_weights::convert(&c.src, &c.dst, c.dtype, None),
            Command::Export(c) => write_weights::convert(&c.src, &c.dst, c.dtype, c.origin_hf.as_deref()),
            Command::Inspect(c) => inspect::inspect(&c.path, c.json),
            Command::Diff(c) => diff::diff(&c.a, &c.b),
        }
    })
}

/// A library error as the failure of the tool.
#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn failure(error: slime_weights::Error) -> Failure {
    Failure::from_error(error.exit_code(), &error)
}
