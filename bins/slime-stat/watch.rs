//! Stays with a run: one line for every trained step and evaluation, and on a terminal a bar with the time left.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use slime_cli::{Failure, drain};
use slime_config::{RunConfig, RunDir, paths};

use crate::read_metrics::{Metrics, Numbers, read};

/// Pause between two looks at the run.
const PAUSE: Duration = Duration::from_millis(300);
/// The bar and the phase beside it.
const BAR: &str = "{prefix} [{bar:24}] {pos}/{len} steps  {msg}";
/// Without the number of steps there is nothing to fill.
const NO_BAR: &str = "{prefix} {pos} steps  {msg}";

/// Prints what happens in `run` until it is done, or this process is asked to end.
///
/// # Errors
/// The run cannot be read, or stdout is gone.
pub fn watch(run: &str) -> Result<(), Failure> {
    drain::install();
    let run_dir = RunDir::new(run);
    let num_steps = num_steps(&run_dir)?;
    let bar = bar(run, num_steps);
    let mut shown = Shown::default();
    let mut step_began = Instant::now();
    loop {
        // Looked at first: what was written before the end is then read below.
        let is_done = run_dir.control("done").exists();
        let metrics = read(run)?;
        if print(&bar, &mut shown, &metrics, num_steps)? {
            step_began = Instant::now();
        }
        if is_done || drain::requested() {
            bar.finish_and_clear();
            return Ok(());
        }
        bar.set_position(shown.steps.len() as u64);
        bar.set_message(format!(
            "{}{}",
            phase(&run_dir, &metrics),
            left(&metrics, num_steps, step_began.elapsed())
        ));
        bar.tick();
        std::thread::sleep(PAUSE);
    }
}

/// What was printed already.
#[derive(Default)]
struct Shown {
    steps: BTreeSet<u64>,
    evals: BTreeSet<(u64, String)>,
}

fn num_steps(run_dir: &RunDir) -> Result<Option<u64>, Failure> {
    let config: RunConfig = slime_config::load(Some(&run_dir.run_toml()), &[])
        .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    Ok(config.run.num_steps)
}

fn bar(run: &str, num_steps: Option<u64>) -> ProgressBar {
    // A pipe or a log gets the lines alone.
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(num_steps, target);
    let template = if num_steps.is_some() { BAR } else { NO_BAR };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(run.to_owned());
    bar
}

/// Prints what is new; true when a step was.
fn print(
    bar: &ProgressBar,
    shown: &mut Shown,
    metrics: &Metrics,
    num_steps: Option<u64>,
) -> Result<bool, Failure> {
    let of = num_steps.map(|steps| format!("/{steps}")).unwrap_or_default();
    let mut has_step = false;
    // An evaluation of version v comes before step v, which makes version v + 1.
    let mut lines: Vec<((u64, usize), String)> = Vec::new();
    // The rollout's numbers of a step come before those of its training, which complete the line.
    for (step, numbers) in metrics.steps.iter().filter(|(_, numbers)| numbers.contains_key("train/loss")) {
        if shown.steps.insert(*step) {
            has_step = true;
            let line = format!("{}{of}  step {step}: {}\n", step + 1, summary(numbers, &STEP_NUMBERS));
            lines.push(((*step, 1), line));
        }
    }
    for ((version, set), numbers) in &metrics.evals {
        if shown.evals.insert((*version, set.clone())) {
            let line = format!("     version {version}, {set}: {}\n", summary(numbers, &EVAL_NUMBERS));
            lines.push(((*version, 0), line));
        }
    }
    lines.sort();
    let text: String = lines.into_iter().map(|(_, line)| line).collect();
    bar.suspend(|| stdout().lock().write_all(text.as_bytes())).or_else(|error| {
        // Whoever read has seen enough.
        if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(Failure::io("stdout", &error)) }
    })?;
    Ok(has_step)
}

/// What a line says of a step: name in the metrics, name on the line, decimals.
const STEP_NUMBERS: [(&str, &str, usize); 5] = [
    ("rollout/raw_reward", "reward", 3),
    ("rollout/response_lengths", "response length", 1),
    ("rollout/entropy", "entropy", 3),
    ("train/train_rollout_logprob_abs_diff_max", "largest log-prob difference", 6),
    ("perf/step_time", "seconds", 1),
];
/// The same of an evaluation.
const EVAL_NUMBERS: [(&str, &str, usize); 1] = [("reward_mean", "reward", 3)];

fn summary(numbers: &Numbers, wanted: &[(&str, &str, usize)]) -> String {
    let part = |(key, name, decimals): &(&str, &str, usize)| {
        let value = numbers.get(*key).and_then(Value::as_f64)?;
        Some(format!("{name} {value:.decimals$}"))
    };
    wanted.iter().filter_map(part).collect::<Vec<_>>().join(", ")
}

/// What the run waits for.
fn phase(run_dir: &RunDir, metrics: &Metrics) -> String {
    let step = metrics.steps.iter().filter(|(_, numbers)| numbers.contains_key("train/loss")).count() as u64;
    if run_dir.join(paths::manifest(step)).exists() {
        format!("training step {step}")
    } else if run_dir.join(paths::VERSIONS).exists() {
        format!("generating step {step}")
    } else {
        "starting".to_owned()
    }
}

/// The time left, as the mean step takes it.
fn left(metrics: &Metrics, num_steps: Option<u64>, since_step: Duration) -> String {
    let seconds: Vec<f64> =
        metrics.series("perf/step_time").into_iter().map(|(_, seconds)| seconds).collect();
    let (Some(num_steps), false) = (num_steps, seconds.is_empty()) else { return String::new() };
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let num_left = num_steps.saturating_sub(seconds.len() as u64) as f64;
    let left = (mean * num_left - since_step.as_secs_f64().min(mean)).max(0.0) as u64;
    format!(", about {}:{:02} left", left / 60, left % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn time_left_is_that_of_the_steps_to_come() {
        let mut metrics = Metrics::default();
        for step in 0..2 {
            let numbers = json!({"perf/step_time": 30.0}).as_object().cloned().unwrap_or_default();
            metrics.steps.insert(step, numbers);
        }
        assert_eq!(left(&metrics, Some(5), Duration::from_secs(10)), ", about 1:20 left");
        assert_eq!(left(&metrics, None, Duration::ZERO), "");
        assert_eq!(left(&Metrics::default(), Some(5), Duration::ZERO), "");
    }
}
