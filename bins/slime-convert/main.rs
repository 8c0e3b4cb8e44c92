//! slime-convert: brings checkpoints into weight directories and out again, shows and compares them.

mod args;
mod arrange;
mod convert;
mod diff;
mod export_adapter;
mod inspect;
mod read_weights;
mod shard_size;
mod side_files;
mod write_weights;

use std::process::ExitCode;

use args::{Args, Command};
use slime_cli::Failure;

fn main() -> ExitCode {
    slime_cli::run("slime-convert", || {
        let args: Args = slime_cli::parse()?;
        slime_cli::start_logging(args.verbosity);
        match args.command {
            Command::Import(c) => convert::convert(&c.src, &c.dst, &c.written, None),
            Command::Export(c) if inspect::checkpoint::is_one(&c.src) => {
                export_adapter::export_adapter(&c.src, &c.dst, c.origin_hf.as_deref())
            }
            Command::Export(c) => convert::convert(&c.src, &c.dst, &c.written, c.origin_hf.as_deref()),
            Command::Inspect(c) => inspect::inspect(&c),
            Command::Diff(c) => diff::diff(&c.a, &c.b),
        }
    })
}

/// A library error as the failure of the tool.
#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn failure(error: slime_weights::Error) -> Failure {
    Failure::from_error(error.exit_code(), &error)
}
