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
    about = "Shows what is going on in a run: a table of steps, evaluations, curves, the job and its ranks",
    after_help = "\
Reads:   RUN/metrics/*.jsonl, RUN/attempt-*/{outcome,env.txt,failed.*,rank/*.json},
         RUN/control/done, and once what scontrol says about the job; with - from stdin
         metric lines, or samples with rewards (JSON lines or Arrow); with --answers
         RUN/eval; with --watch RUN/run.toml too
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

Example:
  slime-stat runs/quickstart
  slime-stat runs/quickstart --answers greedy
  slime-rollout ... | slime-reward --type number | slime-stat -

Exit codes: 0 ok, 64 usage, 65 broken metrics or samples, 66 no such run, 74 I/O, 77 permission"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A run directory, or - for metric lines or samples from stdin
    #[arg(value_name = "RUN|-", default_value = "", hide_default_value = true)]
    pub run: String,
    /// Only the evaluations
    #[arg(long)]
    pub eval: bool,
    /// Everything as one JSON object
    #[arg(long, conflicts_with = "eval")]
    pub json: bool,
    /// The questions of an evaluation set with the answers of the first and the newest version
    #[arg(long, value_name = "SET", conflicts_with_all = ["eval", "json"])]
    pub answers: Option<String>,
    /// Stays until the run is done: a line for each step; on a terminal also a bar with the time left
    #[arg(long, conflicts_with_all = ["eval", "json", "answers"])]
    pub watch: bool,
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// What else it does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Packs old steps and logs of a run, and brings them back
    Archive(Archive),
}
