//! The command line of `slime-stat`.

use clap::{Parser, Subcommand};
use slime_cli::Verbosity;

use crate::archive::Archive;

/// What the user asked for.
#[derive(Debug, Parser)]
#[command(
    name = "slime-stat",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    about = "Shows what is going on in a run: tables, curves, a live view, a report, and exports for other programs",
    after_help = "\
Reads:   RUN/metrics/*.jsonl, RUN/attempt-*/{outcome,env.txt,failed.*,rank/*.json},
         RUN/control/done, and once what scontrol says about the job; with - from stdin
         metric lines, or samples with rewards (JSON lines or Arrow); with --answers
         RUN/eval; with --watch RUN/run.toml too; with --html also RUN/{run.toml,run.json,
         trace,eval} and, of a few steps, manifests, samples, columns and the tokenizer
         A line that is torn or broken is left out, and said.
Writes:  tables and curves on stdout; with --json one object with the keys
         steps, eval, outcome
         job         of the newest attempt, or null: id, state, problem (why there is no
                     state), reason, num_nodes, run_s, left_s, expected_start, num_requeues
         attempts    attempt, outcome (done, drained, stopped, failed; running, lost,
                     unfinished), job_id, failures: role, code, message, hint
         phases      num_steps, total_s, parts: seconds and share of each; or null
         efficiency  of the newest attempt: roles: role, num_ranks, num_restarts,
                     cpu_efficiency, max_rss_bytes, section, newest_note_s;
                     silent: role, host, section, silent_s
         of samples one key, samples: num_samples, num_groups, num_flat_groups,
         reward_mean, reward_std, rewards (mean and positive_share of each part),
         response_len_mean, response_len_max, truncated_share
         with --html FILE one page; with --export TARGET, each whole or not at all:
         FILE.csv         a row a step, a column a number; evaluations in FILE.eval.csv
         FILE.parquet     the same; evaluations in FILE.eval.parquet
         tensorboard:DIR  an event file; evaluations are eval/<set>
         wandb:DIR        an offline run, for `wandb sync DIR/offline-run-*`
         prometheus:FILE  the newest value of each number, for the textfile collector
         trace:FILE       the spans of all tools, for Perfetto or chrome://tracing

Examples:
  slime-stat runs/quickstart
  slime-stat runs/quickstart --answers greedy
  slime-stat runs/quickstart --watch
  slime-stat runs/quickstart --html report.html
  slime-stat runs/a runs/b --html comparison.html
  slime-stat runs/quickstart --export steps.parquet
  slime-rollout ... | slime-reward --type number | slime-stat -
  slime-rollout --eval SET ... | slime-reward --type number | slime-stat --eval -

Exit codes: 0 ok, 64 usage, 65 broken metrics or samples, 66 no such run, 73 cannot create,
74 I/O, 77 permission"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A run directory, or - for metric lines or samples from stdin; with --html several run directories
    #[arg(value_name = "RUN|-", required = true)]
    pub runs: Vec<String>,
    /// Only the evaluations; of samples on stdin, the numbers of the evaluation they are
    #[arg(long)]
    pub eval: bool,
    /// Everything as one JSON object
    #[arg(long, conflicts_with = "eval")]
    pub json: bool,
    /// The questions of an evaluation set with the answers of the first and the newest version
    #[arg(long, value_name = "SET", conflicts_with_all = ["eval", "json"])]
    pub answers: Option<String>,
    /// Stays until the run is done: a live view on a terminal (q leaves it), elsewhere a line for each step
    #[arg(long, conflicts_with_all = ["eval", "json", "answers"])]
    pub watch: bool,
    /// One page that needs no network: whether it worked and why, curves, samples; several runs are compared
    #[arg(long, value_name = "FILE", conflicts_with_all = ["eval", "json", "answers", "watch"])]
    pub html: Option<String>,
    /// The numbers for other programs: FILE.csv, FILE.parquet, tensorboard:DIR, wandb:DIR, prometheus:FILE, trace:FILE
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["eval", "json", "answers", "watch", "html"])]
    pub export: Option<String>,
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// What else it does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Packs old steps and logs of a run, and brings them back
    Archive(Archive),
}
