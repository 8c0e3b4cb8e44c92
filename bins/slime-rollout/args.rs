//! The command line of slime-rollout.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use slime_cli::{Failure, Verbosity};
use slime_config::RunConfig;
use slime_metrics::Profile;

/// Samples responses to prompts, with the exact tokens and log-probs a trainer needs; or replays recorded ones
#[derive(Debug, Parser)]
#[command(
    name = "slime-rollout",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "\
Reads:   a weight directory with its tokenizer; prompts as JSON lines (also .zst) or Parquet, or those
         of an environment; with --follow run.toml and the published weights of the run.
         Rows with responses (data.kind = \"conversations\" or \"preferences\") need the tokenizer only
Writes:  samples as JSON lines or Arrow, groups in the order of their prompts (a file gets its name
         when it is complete); with --follow rollout/, eval/, metrics/, trace/ and, as
         [metrics] says, tensorboard/ of the run
Example: slime-rollout --weights weights/smollm2 --prompts prompts.jsonl \\
             --set rollout.n_samples_per_prompt=8 | slime-reward --type number
         slime-rollout --weights weights/smollm2 --prompts chats.jsonl --set data.kind=conversations
Exit:    0 ok, 64 usage, 65 bad data (broken line, prompt longer than the context, response
         without a token to train), 66 no input, 69 no device, 73 cannot create, 74 I/O, 75 drained,
         77 permission, 78 configuration"
)]
pub struct Args {
    #[command(flatten)]
    pub verbosity: Verbosity,
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub once: Once,
}

/// What else it does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Adds to rows with tokens the log-probs of every token after the first
    Score(Score),
}

/// Sampling once over all prompts.
#[derive(Debug, ClapArgs)]
pub struct Once {
    /// Weight directory: config.json, safetensors, tokenizer (default: `model.path` of the configuration)
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    /// Prompts, or what else `data.kind` says the rows are, as JSON lines (also .zst) or Parquet, with an optional slice (prompts.jsonl@[0:100]); - is stdin (default: what
    /// [data] of the configuration names)
    #[arg(long, value_name = "FILE|-")]
    pub prompts: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
    /// Where samples go; - is stdout
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub output: String,
    /// How samples are written
    #[arg(long, value_enum, default_value_t = OutputFormat::Jsonl)]
    pub format: OutputFormat,
    /// Key of a row's prompt (default: `data.input_key`)
    #[arg(long, value_name = "KEY")]
    pub input_key: Option<String>,
    /// Key of a row's expected answer (default: `data.label_key`)
    #[arg(long, value_name = "KEY")]
    pub label_key: Option<String>,
    /// Key of a row's metadata (default: `data.metadata_key`)
    #[arg(long, value_name = "KEY")]
    pub metadata_key: Option<String>,
    /// Sample an evaluation set of the configuration as the run itself does
    #[arg(long, value_name = "SET", conflicts_with_all = ["prompts", "num_prompts"])]
    pub eval: Option<String>,
    /// Stop after this many prompts (a large environment has no end of its own)
    #[arg(long, value_name = "N")]
    pub num_prompts: Option<u64>,
    #[command(flatten)]
    pub resident: Resident,
}

/// Staying with a run.
#[derive(Debug, ClapArgs)]
pub struct Resident {
    /// Stay with this run directory, in both roles unless one is named; run.toml in it is the configuration
    #[arg(long, value_name = "RUN", conflicts_with_all = ["weights", "prompts", "config", "output", "eval", "num_prompts", "dry_run"])]
    pub follow: Option<PathBuf>,
    /// Only draw prompts, assign, accept and commit steps
    #[arg(long, requires = "follow", conflicts_with = "replica")]
    pub builder: bool,
    /// Only generate, as replica R
    #[arg(long, value_name = "R", requires = "follow")]
    pub replica: Option<u32>,
    /// Write spans of every engine step of these training steps (3, or 3:5 with both ends) into the run's trace
    #[arg(long, value_name = "STEPS", requires = "follow", conflicts_with = "builder")]
    pub profile: Option<Profile>,
    /// Start although the same role seems to be alive; the other one ends
    #[arg(long, requires = "follow")]
    pub takeover: bool,
}

/// `slime-rollout score`.
#[derive(Debug, ClapArgs)]
pub struct Score {
    /// Weight directory
    #[arg(long, value_name = "DIR")]
    pub weights: PathBuf,
    #[command(flatten)]
    pub settings: Settings,
    /// Rows with "tokens", as JSON lines or Arrow; - is stdin
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub input: String,
    /// Where the rows go, as JSON lines; - is stdout
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub output: String,
    /// Writes the log-probs of the response alone, one for each of its tokens, under this name: `teacher_log_probs` is
    /// what slime-train distills from (default: `log_probs`, one for each token after the first)
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,
}

/// The configuration and what is changed in it.
#[derive(Debug, ClapArgs)]
pub struct Settings {
    /// Configuration of the run
    #[arg(long, value_name = "TOML")]
    pub config: Option<PathBuf>,
    /// Changes one key, as rollout.temperature=0.8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Print the resolved configuration, its plan as comments, and exit
    #[arg(long)]
    pub dry_run: bool,
}

/// Formats of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// JSON lines
    Jsonl,
    /// Arrow IPC: a stream on stdout, a file elsewhere
    Arrow,
}

impl Settings {
    /// Reads the configuration with the changes on top, and says what has no effect.
    pub fn load(&self) -> Result<RunConfig, Failure> {
        let config = slime_config::load(self.config.as_deref(), &self.sets)
            .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    /// Ends the tool with the text that `--dry-run` asks for, where it does.
    pub fn answer_dry_run(&self, config: &RunConfig) -> Result<(), Failure> {
        if !self.dry_run {
            return Ok(());
        }
        let text = config.to_toml().map_err(|error| Failure::from_error(error.exit_code(), &error))?;
        // Text that was asked for: `run` prints it on stdout.
        Err(Failure::new(0, text))
    }
}

impl Once {
    /// The configuration with this command line's flags on top, which are names for keys of `[data]` and `[model]`.
    pub fn config(&self) -> Result<RunConfig, Failure> {
        let mut config = self.settings.load()?;
        if let Some(weights) = &self.weights {
            config.model.path = weights.display().to_string();
        }
        if let Some(prompts) = &self.prompts {
            config.data.prompts = Some(prompts.clone());
            config.data.environment = None;
            config.data.source.clear();
        }
        for (flag, key) in [
            (&self.input_key, &mut config.data.input_key),
            (&self.label_key, &mut config.data.label_key),
            (&self.metadata_key, &mut config.data.metadata_key),
        ] {
            if let Some(name) = flag {
                key.clone_from(name);
            }
        }
        self.settings.answer_dry_run(&config)?;
        if config.model.path.is_empty() {
            return Err(
                Failure::usage("no weights").with_hint("--weights DIR, or model.path in --config TOML")
            );
        }
        if self.eval.is_none() && !config.data.is_named() {
            return Err(Failure::usage("no prompts")
                .with_hint("--prompts FILE, or --set data.environment=arithmetic --num-prompts 8"));
        }
        Ok(config)
    }
}
