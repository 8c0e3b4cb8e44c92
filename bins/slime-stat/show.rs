//! Chooses what is shown.

use std::io::{Write, stdin, stdout};

use slime_cli::{Failure, parse, start_logging};

use crate::args::Args;
use crate::read_answers::read_answers;
use crate::read_metrics::{Metrics, read, read_lines};
use crate::read_samples::{Stream, read_stream};
use crate::summarise::{Summary, summarise};
use crate::watch::watch;
use crate::{write_answers, write_curves, write_json, write_samples, write_summary, write_table};

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
    if args.run == "-" {
        return print(&stream(&args)?);
    }
    let metrics = read(&args.run)?;
    let text = match (args.json, args.eval) {
        (true, _) => write_json::json(&metrics, Some(&summarise(&args.run, &metrics))),
        (_, true) => page(&metrics, None, true),
        _ => page(&metrics, Some(&summarise(&args.run, &metrics)), false),
    };
    print(&text)
}

/// What is said about stdin, which has metric lines or samples.
fn stream(args: &Args) -> Result<String, Failure> {
    Ok(match read_stream(stdin(), "stdin")? {
        Stream::Samples(_) if args.eval => {
            return Err(Failure::usage("--eval shows evaluations, but stdin has samples"));
        }
        Stream::Samples(samples) if args.json => write_samples::json(&samples),
        Stream::Samples(samples) => write_samples::text(&samples),
        Stream::Lines(text) if args.json => write_json::json(&read_lines(&text, "stdin")?, None),
        Stream::Lines(text) => page(&read_lines(&text, "stdin")?, None, args.eval),
    })
}

fn print(text: &str) -> Result<(), Failure> {
    stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::io("stdout", &error))
}

fn page(metrics: &Metrics, summary: Option<&Summary>, only_eval: bool) -> String {
    let mut text = String::new();
    if !only_eval {
        text += &write_table::steps(metrics);
        text += &write_curves::curve("rollout/raw_reward by step", &metrics.rewards());
    }
    text += &write_table::evals(metrics);
    for set in metrics.sets() {
        let title = format!("reward_mean of {set} by version");
        text += &write_curves::curve(&title, &metrics.eval_series(set, "reward_mean"));
    }
    text += &summary.map(write_summary::text).unwrap_or_default();
    text + &format!("outcome: {}\n", metrics.outcome)
}
