//! `slime-reward`: samples in, the same samples with their rewards out.

mod args;
mod follow;
mod read_samples;
mod score;
mod stream;
mod write_rewards;
mod write_stats;

use std::process::ExitCode;

fn main() -> ExitCode {
    slime_cli::run("slime-reward", score::main)
}
