//! One line for every trained step and evaluation, and where stderr is a terminal a bar with the time left.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use slime_cli::{Failure, drain};
use slime_config::RunDir;

use super::{left, num_steps, phase};
use crate::names::{self, number};
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
pub fn follow(run: &str) -> Result<(), Failure> {
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
    for (step, numbers) in metrics.steps.iter().filter(|(_, numbers)| names::is_trained(numbers)) {
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
    (names::REWARD, "reward", 3),
    ("rollout/response_len/mean", "response length", 1),
    ("train/entropy_loss", "entropy", 3),
    ("train/train_rollout_logprob_abs_diff_max", "largest log-prob difference", 6),
    (names::STEP_TIME, "seconds", 1),
];
/// The same of an evaluation.
const EVAL_NUMBERS: [(&str, &str, usize); 1] = [(names::REWARD, "reward", 3)];

fn summary(numbers: &Numbers, wanted: &[(&str, &str, usize)]) -> String {
    let part = |(key, name, decimals): &(&str, &str, usize)| {
        let value = number(numbers, key)?;
        Some(format!("{name} {value:.decimals$}"))
    };
    wanted.iter().filter_map(part).collect::<Vec<_>>().join(", ")
}
