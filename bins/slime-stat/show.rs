//! Chooses what is shown.

use std::io::{Write, stdin, stdout};

use slime_cli::{Failure, Output, parse, start_logging};

use crate::archive;
use crate::args::{Args, Command};
use crate::read_answers::read_answers;
use crate::read_metrics::{Metrics, read, read_lines};
use crate::read_run::{Run, read_run};
use crate::read_samples::{Stream, read_stream};
use crate::summarise::{Summary, summarise};
use crate::watch::watch;
use crate::{
    export, names, report, write_answers, write_curves, write_json, write_samples, write_summary, write_table,
};

/// The body of the tool.
pub fn main() -> Result<(), Failure> {
    let args: Args = parse()?;
    start_logging(args.verbosity);
    if let Some(Command::Archive(archive)) = &args.command {
        return archive::archive(archive);
    }
    if let Some(output) = &args.html {
        return write_report(&args.runs, output);
    }
    let [run] = args.runs.as_slice() else {
        return Err(Failure::usage(format!("expected one run, got {}", args.runs.len()))
            .with_hint("several runs are compared by --html FILE"));
    };
    let needs_folder = args.watch || args.answers.is_some() || args.export.is_some();
    if run == "-" && needs_folder {
        return Err(Failure::usage("--watch, --answers and --export need a run directory, got -"));
    }
    if args.watch {
        return watch(run);
    }
    if let Some(target) = &args.export {
        return export::export(run, target);
    }
    if let Some(set) = &args.answers {
        return print(&write_answers::answers(&read_answers(run, set)?));
    }
    if run == "-" {
        return print(&stream(&args)?);
    }
    let metrics = read(run)?;
    metrics.missing.iter().for_each(|sentence| tracing::warn!("{sentence}"));
    let text = match (args.json, args.eval) {
        (true, _) => write_json::json(&metrics, Some(&summarise(run, &metrics))),
        (_, true) => page(&metrics, None, true),
        _ => page(&metrics, Some(&summarise(run, &metrics)), false),
    };
    print(&text)
}

/// Writes the page of these runs.
fn write_report(paths: &[String], output: &str) -> Result<(), Failure> {
    if paths.iter().any(|path| path == "-") {
        return Err(Failure::usage("--html needs run directories, got -"));
    }
    let runs: Vec<Run> =
        paths.iter().map(|path| Ok(read_run(path)?.with_summary())).collect::<Result<_, _>>()?;
    let mut file = Output::create(output)?;
    file.write_all(report::page(&runs).as_bytes()).map_err(|error| Failure::io(output, &error))?;
    file.finish()
}

/// What is said about stdin, which has metric lines or samples.
fn stream(args: &Args) -> Result<String, Failure> {
    Ok(match read_stream(stdin(), "stdin", args.eval)? {
        Stream::Samples(samples) if args.eval => write_samples::evaluation(&samples),
        Stream::Samples(samples) if args.json => write_samples::json(&samples),
        Stream::Samples(samples) => write_samples::text(&samples),
        Stream::Lines(text) if text.trim().is_empty() => return Err(Failure::data("stdin: no rows")),
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
        let is_of_today = metrics.steps.values().any(|numbers| numbers.contains_key(names::REWARD));
        let name = if is_of_today { names::REWARD } else { names::REWARD_MEAN };
        let title = format!("{name} by step");
        text += &write_curves::curve(&title, &metrics.series(names::REWARD));
    }
    text += &write_table::evals(metrics);
    for set in metrics.sets() {
        let title = format!("reward_mean of {set} by version");
        text += &write_curves::curve(&title, &metrics.eval_series(set, "reward_mean"));
    }
    text += &summary.map(write_summary::text).unwrap_or_default();
    text + &format!("outcome: {}\n", metrics.outcome)
}
