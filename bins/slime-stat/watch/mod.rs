//! Stays with a run: a live view where a person sits at a terminal, elsewhere a line for each step.

mod lines;
mod live;
mod screen;

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use slime_cli::{Failure, drain};
use slime_config::{RunConfig, RunDir, paths};

use crate::names::STEP_TIME;
use crate::read_metrics::Metrics;

/// Shows what happens in `run` until it is done, or this process is asked to end.
///
/// # Errors
/// The run cannot be read, or stdout is gone.
pub fn watch(run: &str) -> Result<(), Failure> {
    drain::install();
    // A job in the background has no keyboard, and a pipe or a log gets the lines alone.
    if stdin().is_terminal() && stdout().is_terminal() { live::stay(run) } else { lines::follow(run) }
}

fn num_steps(run_dir: &RunDir) -> Result<Option<u64>, Failure> {
    let config: RunConfig = slime_config::load(Some(&run_dir.run_toml()), &[])
        .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    Ok(config.run.num_steps)
}

/// What the run waits for.
fn phase(run_dir: &RunDir, metrics: &Metrics) -> String {
    let step = metrics.num_trained();
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
    let seconds: Vec<f64> = metrics.series(STEP_TIME).into_iter().map(|(_, seconds)| seconds).collect();
    let (Some(num_steps), false) = (num_steps, seconds.is_empty()) else { return String::new() };
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let num_left = num_steps.saturating_sub(seconds.len() as u64) as f64;
    let left = (mean * num_left - since_step.as_secs_f64().min(mean)).max(0.0) as u64;
    match left {
        0..3600 => format!(", about {}:{:02} left", left / 60, left % 60),
        _ => format!(", about {} h {:02} min left", left / 3600, left / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn time_left_is_that_of_the_steps_to_come() {
        let mut metrics = Metrics::default();
        for step in 0..2 {
            let numbers = json!({"step_s": 30.0}).as_object().cloned().unwrap_or_default();
            metrics.steps.insert(step, numbers);
        }
        assert_eq!(left(&metrics, Some(5), Duration::from_secs(10)), ", about 1:20 left");
        assert_eq!(left(&metrics, Some(1002), Duration::ZERO), ", about 8 h 20 min left");
        assert_eq!(left(&metrics, None, Duration::ZERO), "");
        assert_eq!(left(&Metrics::default(), Some(5), Duration::ZERO), "");
    }
}
