//! Chooses what is shown.

use std::io::{Write, stdout};

use slime_cli::{Failure, parse, start_logging};

use crate::args::Args;
use crate::read_answers::read_answers;
use crate::read_metrics::{Metrics, read};
use crate::watch::watch;
use crate::{write_answers, write_curves, write_json, write_table};

/// The body of the tool.
pub fn main() -> Result<(), Failure> {
    let args: Args = parse()?;
    start_logging(args.verbosity);
    let is_stream = args.run == "-" && (args.watch || args.answers.is_some());
    if is_stream {
        return Err(Failure::usage("--watch and --answers need a run directory, got -"));
    }
    if args.watch {
        return watch(&args.run);
    }
    if let Some(set) = &args.answers {
        return print(&write_answers::answers(&read_answers(&args.run, set)?));
    }
    let metrics = read(&args.run)?;
    let text = if args.json { write_json::json(&metrics) } else { page(&metrics, args.eval) };
    print(&text)
}

fn print(text: &str) -> Result<(), Failure> {
    stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::io("stdout", &error))
}

fn page(metrics: &Metrics, only_eval: bool) -> String {
    let mut text = String::new();
    if !only_eval {
        text += &write_table::steps(metrics);
        text += &write_curves::curve("reward_mean by step", &metrics.series("reward_mean"));
    }
    text += &write_table::evals(metrics);
    for set in metrics.sets() {
        let title = format!("reward_mean of {set} by version");
        text += &write_curves::curve(&title, &metrics.eval_series(set, "reward_mean"));
    }
    text + &format!("outcome: {}\n", metrics.outcome)
}
