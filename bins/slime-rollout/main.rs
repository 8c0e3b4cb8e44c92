//! slime-rollout: samples responses to prompts, replays recorded ones, scores given tokens, and serves an engine.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod build_steps;
mod continuation;
mod evaluate;
mod follow;
mod generate;
mod generator;
mod judge_groups;
mod load_engine;
mod memory;
mod missing_rewards;
mod observe;
mod ranks;
mod reach_stages;
mod read_prompts;
mod read_samples;
mod read_tokens;
mod remote;
mod replay;
mod replicate;
mod sampler;
mod score;
mod serve;
mod take_weights;
mod tokens_ahead;
mod write_metrics;
mod write_rows;
mod write_samples;

use std::process::ExitCode;

use args::{Args, Command};

fn main() -> ExitCode {
    slime_cli::run("slime-rollout", || {
        let args: Args = slime_cli::parse()?;
        slime_cli::start_logging(args.verbosity);
        match args.command {
            Some(Command::Score(score)) => score::score(&score),
            Some(Command::Serve(serve)) => serve::serve(&serve),
            None => match &args.once.resident.follow {
                Some(run) => follow::follow(run, &args.once),
                None => generate::generate(&args.once),
            },
        }
    })
}

/// A library error as the failure of the tool.
macro_rules! failure {
    () => {
        |error| slime_cli::Failure::from_error(error.exit_code(), &error)
    };
}
use failure;
