//! The command line of `slime-stat`.

use clap::Parser;
use slime_cli::Verbosity;

/// What the user asked for.
#[derive(Debug, Parser)]
#[command(
    name = "slime-stat",
    version,
    about = "Shows what is going on in a run: a table of steps, evaluations, curves",
    after_help = "\
Reads:   RUN/metrics/*.jsonl, RUN/attempt-*/outcome, RUN/control/done; with - the metric lines
         from stdin; with --answers RUN/eval; with --watch RUN/run.toml too
Writes:  a table and curves on stdout; with --json {\"steps\":[...],\"eval\":[...],\"outcome\":\"...\"}

Example:
  slime-stat runs/quickstart
  slime-stat runs/quickstart --answers greedy

Exit codes: 0 ok, 64 usage, 65 broken metrics, 66 no such run, 74 I/O, 77 permission"
)]
pub struct Args {
    /// A run directory, or - for metric lines from stdin
    #[arg(value_name = "RUN|-")]
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
