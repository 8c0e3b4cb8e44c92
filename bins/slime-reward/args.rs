//! The command line of `slime-reward`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Parser;
use slime_cli::{Failure, Verbosity, exit};
use slime_verifier::{RewardSet, split_types};

/// What the user asked for.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, Parser)]
#[command(
    name = "slime-reward",
    version,
    about = "Scores samples: rows in, the same rows with `reward` and `rewards` out, order kept",
    after_help = after_help()
)]
pub struct Args {
    /// Reward types with weights, summed: NAME[:WEIGHT][,NAME...]; may be repeated; `list` prints all
    #[arg(long = "type", value_name = "TYPES")]
    pub types: Vec<String>,
    /// Rows as JSON lines or Arrow; - is stdin
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub input: String,
    /// Where the rows go, in the format of the input; - is stdout
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub output: String,
    /// Say for every row on stderr which answer was found and which rule judged it
    #[arg(long)]
    pub explain: bool,
    /// Say at the end on stderr how many rows there were, and each type's mean and distribution
    #[arg(long)]
    pub stats: bool,
    /// Leave out rows that cannot be read or have no usable label, and say which; they are an error otherwise
    #[arg(long)]
    pub skip_bad: bool,
    /// Rows that are scored together; the rewards do not depend on it
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN))]
    pub batch_rows: NonZeroUsize,
    /// Threads that score; the default is one for each core
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    pub threads: Option<NonZeroUsize>,
    /// Least isolation with which code of responses is run: limits, seccomp, landlock or namespaces; a machine that allows
    /// less is an error [default: landlock, or the configuration's `reward.sandbox_min`]
    #[arg(long, value_name = "TIER")]
    pub sandbox_min: Option<String>,
    /// Stay with a run whose reward.placement is separate; its run.toml names the types
    #[arg(long, value_name = "RUN", conflicts_with_all = ["types", "input", "output", "explain", "stats", "skip_bad", "batch_rows", "config", "dry_run"])]
    pub follow: Option<PathBuf>,
    /// Which of the run's reward workers this is, from 0
    #[arg(long, value_name = "N", default_value_t = 0, requires = "follow")]
    pub worker: u32,
    /// Reward workers that share the run's segments
    #[arg(long, value_name = "N", default_value_t = 1, requires = "follow")]
    pub num_workers: u32,
    /// Start although the same worker of the run seems to be alive; the other one ends
    #[arg(long, requires = "follow")]
    pub takeover: bool,
    /// A run's configuration; its [reward] types are used when --type is not given
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set a key of the configuration: section.key=value
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Print the resolved configuration, its plan as comments, and exit
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// What stands below the options: the reward types come from their table.
fn after_help() -> String {
    format!("{BEFORE_TYPES}\n\n{}\n{AFTER_TYPES}", slime_verifier::help())
}

const BEFORE_TYPES: &str = "\
Reads:   rows with `response`, and `label` and `metadata` where the type needs them
Writes:  the same rows plus `reward` (the weighted sum) and `rewards` (one value for each type);
         with --follow reads RUN/rollout segments and writes RUN/column/reward and RUN/trace";

const AFTER_TYPES: &str = "\
Metadata of code, one of:
  {\"cases\": [{\"stdin\": \"2\", \"stdout\": \"4\"}]}     whole programs; \"compare\": lines, tokens, exact
  {\"tests\": \"assert f(2) == 4\"}                 Python, JavaScript; text or list; \"setup\" before it
  {\"prompt\": .., \"test\": .., \"entry_point\": ..} a row of HumanEval
  {\"test_list\": [..], \"test_setup_code\": ..}    a row of MBPP
and beside it \"language\" (python), \"time_limit_s\" (10) and \"memory_limit_mb\" (1024) of each run

Example:
  slime-reward --type number,format:json:0.2 --input samples.jsonl --output scored.jsonl

Exit codes: 0 ok, 64 usage, 65 bad row or label, 66 no input, 69 program or server failed,
            or a compiler, an interpreter or isolation is missing, 71 OS, 73 cannot create,
            74 I/O, 75 drained, 77 permission, 78 configuration";

impl Args {
    /// The configuration with `--set` on top and `--type` in force.
    pub fn configuration(&self) -> Result<slime_config::RunConfig, Failure> {
        let mut config = slime_config::load(self.config.as_deref(), &self.sets)
            .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
        if !self.types.is_empty() {
            config.reward.types = self.types.iter().flat_map(|argument| split_types(argument)).collect();
        } else if self.config.is_none() && self.sets.is_empty() {
            return Err(Failure::usage("no reward type").with_hint("name one: --type number"));
        }
        Ok(config)
    }

    /// Starts the sandbox if a type runs code; to be called before anything that starts a thread.
    pub fn start_sandbox(&self, config: &slime_config::RunConfig) -> Result<(), Failure> {
        let min = self.sandbox_min.as_deref().unwrap_or(config.reward.sandbox_min.name());
        if config.reward.runs_code() {
            let standing = slime_verifier::start_sandbox(min)
                .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
            tracing::info!("{standing}");
        } else if self.sandbox_min.is_some() {
            tracing::warn!("--sandbox-min has no effect: no reward type runs code");
        }
        Ok(())
    }

    /// The reward types of a configuration.
    pub fn reward_set(&self, config: &slime_config::RunConfig) -> Result<RewardSet, Failure> {
        RewardSet::of_run(config).map_err(|error| {
            // A type in a file is a configuration error, on the command line a usage error.
            let code = if self.types.is_empty() { exit::CONFIG } else { error.exit_code() };
            Failure::from_error(code, &error)
        })
    }
}
