//! The command line of slime-rollout.
#![expect(clippy::doc_markdown, reason = "help pages show these comments as they are")]

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use slime_cli::{Failure, Verbosity};
use slime_config::{HfConfig, RunConfig};
use slime_metrics::Profile;
use slime_weights::{PlanLayout, dry_run_comment};

/// Samples responses to prompts, with the exact tokens and log-probs a trainer needs; or replays recorded ones
#[derive(Debug, Parser)]
#[command(
    name = "slime-rollout",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "\
Reads:   a weight directory with its tokenizer; prompts as JSON lines (also .zst) or Parquet, or those
         of an environment; with --engine samples of servers, in place of weights; with --follow
         run.toml and the published weights of the run, the way they were sent ([sync]).
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
    /// Serves the model over HTTP, with the routes of SGLang and OpenAI
    Serve(Box<Serve>),
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
    pub engines: Engines,
    #[command(flatten)]
    pub resident: Resident,
}

/// Servers in place of an engine of this process.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Engines {
    /// Sample by this server (slime-rollout serve, SGLang or vLLM) instead, http://HOST:PORT or unix:PATH; several by
    /// repetition or commas. Weights are then read for their tokenizer and config.json alone, and with --follow servers
    /// load what the run publishes
    #[arg(long, value_name = "URL", value_delimiter = ',', conflicts_with = "builder")]
    pub engine: Vec<String>,
    /// What servers want to be shown
    #[arg(long, value_name = "FILE", requires = "engine")]
    pub engine_token_file: Option<PathBuf>,
    /// Longest time for one group
    #[arg(long, value_name = "S", requires = "engine", default_value_t = 3600)]
    pub engine_timeout_s: u64,
    /// Time without any server that generates after which the tool gives up
    #[arg(long, value_name = "S", requires = "engine", default_value_t = 300)]
    pub engine_patience_s: u64,
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

/// `slime-rollout serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Routes:  SGLang: /generate /abort_request /pause_generation /continue_generation /flush_cache
         /update_weights_from_disk /get_weight_version /health /health_generate /server_info
         /get_model_info /v1/loads; OpenAI: /v1/chat/completions /v1/completions /v1/models;
         Prometheus: /metrics
Writes:  one line of JSON with the URL on stdout when it takes requests
Example: slime-rollout serve --weights weights/smollm2 --port 30000 --token-file token
         curl -H \"Authorization: Bearer $(cat token)\" http://127.0.0.1:30000/generate \\
             -d '{\"text\": \"1 + 1 =\", \"sampling_params\": {\"max_new_tokens\": 8}}'
Exit:    64 usage, 65 bad weights, 66 no input, 69 no device, 73 cannot listen, 75 drained (TERM,
         USR1 or USR2: what runs is answered first), 77 permission, 78 configuration")]
pub struct Serve {
    /// Weight directory: config.json, safetensors, tokenizer
    #[arg(long, value_name = "DIR")]
    pub weights: PathBuf,
    #[command(flatten)]
    pub settings: Settings,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", conflicts_with = "unix_socket")]
    pub port: Option<u16>,
    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// File of the token that clients show as "Authorization: Bearer", mode 0600; made where it does not exist
    #[arg(long, value_name = "FILE", conflicts_with = "unix_socket")]
    pub token_file: Option<PathBuf>,
    /// Listen on a Unix socket of this user alone, without a token
    #[arg(long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// What OpenAI's clients call the model (default: the directory's name)
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Other weights may be loaded from below DIR; without it only --weights itself, again
    #[arg(long, value_name = "DIR")]
    pub weight_root: Vec<PathBuf>,
    /// What the weights are called in answers
    #[arg(long, value_name = "NAME", default_value = "0")]
    pub weight_version: String,
    /// How responses spell calls of tools (default: as the chat template does)
    #[arg(long, value_name = "NAME", value_parser = ["hermes", "llama3", "glm"])]
    pub tool_call_parser: Option<String>,
    /// Samples that wait or run at most
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub max_queued: usize,
    /// Largest body of a request
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub max_body_mib: usize,
    /// Connections at the same time
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_connections: usize,
    /// Longest time for a request to come
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub read_timeout_s: u64,
    /// Longest time for an answer
    #[arg(long, value_name = "S", default_value_t = 14400)]
    pub timeout_s: u64,
    /// Time that running requests have when a drain is asked for
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub drain_timeout_s: u64,
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
        let failed = |code: u8, error: &dyn std::error::Error| Failure::from_error(code, error);
        let text = config.to_toml().map_err(|error| failed(error.exit_code(), &error))?;
        let layout = engine_layout(config)?;
        let model = dry_run_comment(Path::new(&config.model.path), layout)
            .map_err(|error| failed(error.exit_code(), &error))?;
        // Text that was asked for: `run` prints it on stdout.
        Err(Failure::new(0, model + &text))
    }
}

/// How an engine's ranks share the model; one rank where there is no model yet.
fn engine_layout(config: &RunConfig) -> Result<PlanLayout, Failure> {
    let Ok(model) = HfConfig::load(&config.model.path) else { return Ok(PlanLayout::SINGLE) };
    let layout = config.rollout.layout(&model);
    let layout = layout.map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    let [tp, ep, etp] = [layout.tp, layout.ep, layout.etp].map(|axis| axis as usize);
    Ok(PlanLayout { tp, ep, etp, ..PlanLayout::SINGLE })
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
        // What runs once is step 0.
        Ok(config.first_stage())
    }
}
