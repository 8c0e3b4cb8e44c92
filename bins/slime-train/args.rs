//! The command line of slime-train.

use std::path::PathBuf;

use clap::Parser;
use slime_cli::{Failure, Verbosity};
use slime_config::{RunConfig, RunDir};
use slime_metrics::Profile;

/// Updates the policy from samples with rewards
#[derive(Debug, Parser)]
#[command(
    name = "slime-train",
    version,
    after_help = "\
Reads:   a weight directory; samples with a \"reward\", as JSON lines or Arrow; with --follow the
         steps of a run
Writes:  a weight directory with the new policy; with --dump the loss, the gradients and the new
         weights; with --follow versions (by disk, in changes or through memory, as [sync]
         says), checkpoints, metrics/train.jsonl, trace/ and, as [metrics] says, tensorboard/
         and metrics/train.prom of the run
Example: slime-train --algorithm list
         slime-reward --type number --input samples.jsonl |
             slime-train --config run.toml --output weights/1
         mpirun -n 2 slime-train --config run.toml --samples scored.jsonl --output weights/1
         slime-train --follow runs/quickstart
Exit:    0 ok, 64 usage, 65 bad data (broken row, no reward, weights or loss not finite),
         66 no input, 69 no device or MPI, 73 cannot create, 74 I/O, 75 drained, 77 permission,
         78 configuration"
)]
pub struct Args {
    #[command(flatten)]
    pub verbosity: Verbosity,
    /// Configuration of the run
    #[arg(long, value_name = "TOML")]
    pub config: Option<PathBuf>,
    /// Changes one key, as train.lr=1e-6
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Weight directory to start from (default: model.path of the configuration)
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    /// Samples of one rollout, with rewards; - is stdin
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub samples: String,
    /// Weight directory to make
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Gets loss.json, grads.safetensors (of the first optimizer step, before clipping) and weights.safetensors,
    /// under Hugging Face names
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Stays with a run: trains each step once it is committed, publishes versions, keeps checkpoints; the
    /// configuration is RUN/run.toml
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "weights", "output", "dump"])]
    pub follow: Option<PathBuf>,
    /// Goes on from the checkpoint of this version (0: from the first weights) instead of the newest; what was trained
    /// after it is void and trained again
    #[arg(long, value_name = "STEP", requires = "follow")]
    pub resume: Option<u64>,
    /// Start although a trainer of the run seems to be alive; the other one ends
    #[arg(long, requires = "follow")]
    pub takeover: bool,
    /// Writes spans of every micro-batch of these steps (3, or 3:5 with both ends) into the run's trace
    #[arg(long, value_name = "STEPS", requires = "follow")]
    pub profile: Option<Profile>,
    /// Prints every advantage estimator, loss and correction with its formula, keys, defaults and source; with a name
    /// that one alone
    #[arg(long, value_name = "list|NAME")]
    pub algorithm: Option<String>,
    /// Prints the resolved configuration, its plan as comments, and does nothing
    #[arg(long)]
    pub dry_run: bool,
}

impl Args {
    /// The configuration with this command line on top.
    pub fn config(&self) -> Result<RunConfig, Failure> {
        let of_run = self.follow.as_ref().map(|run| RunDir::new(run).run_toml());
        let mut config = slime_config::load(of_run.as_deref().or(self.config.as_deref()), &self.sets)
            .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
        if let Some(weights) = &self.weights {
            config.model.path = weights.display().to_string();
        }
        Ok(config)
    }
}
