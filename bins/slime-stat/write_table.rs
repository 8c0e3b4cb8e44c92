//! Steps and evaluations as aligned columns that fit the terminal.

use crate::read_metrics::{Metrics, Numbers};

/// Columns a reader looks for first; the others follow by name while they fit.
const FIRST: [&str; 10] = [
    "rollout/raw_reward",
    "reward_mean",
    "rollout/response_lengths",
    "train/loss",
    "rollout/entropy",
    "train/kl_loss",
    "train/grad_norm",
    "train/train_rollout_logprob_abs_diff",
    "train/lr-pg_0",
    "perf/step_time",
];
/// Width when the terminal does not tell.
const DEFAULT_WIDTH: usize = 120;

/// The table of steps.
pub fn steps(metrics: &Metrics) -> String {
    let rows: Vec<(Vec<String>, &Numbers)> =
        metrics.steps.iter().map(|(step, numbers)| (vec![step.to_string()], numbers)).collect();
    if rows.is_empty() {
        return "no steps yet\n".to_owned();
    }
    table(&["step"], &rows)
}

/// The table of evaluations; nothing when there are none.
pub fn evals(metrics: &Metrics) -> String {
    let rows: Vec<(Vec<String>, &Numbers)> = metrics
        .evals
        .iter()
        .map(|((version, set), numbers)| (vec![version.to_string(), set.clone()], numbers))
        .collect();
    if rows.is_empty() { String::new() } else { table(&["version", "set"], &rows) }
}

fn table(identity: &[&str], rows: &[(Vec<String>, &Numbers)]) -> String {
    let mut names: Vec<&str> =
        rows.iter().flat_map(|(_, numbers)| numbers.keys().map(String::as_str)).collect();
    names.sort_unstable_by_key(|name| {
        (FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()), *name)
    });
    names.dedup();

    let mut columns: Vec<Vec<String>> = identity
        .iter()
        .enumerate()
        .map(|(at, name)| column(name, rows.iter().map(|(identity, _)| identity[at].clone())))
        .collect();
    let mut room = width().saturating_sub(columns.iter().map(|column| column[0].chars().count() + 2).sum());
    let mut left_out = Vec::new();
    for name in names {
        let cells =
            rows.iter().map(|(_, numbers)| number(numbers.get(name).and_then(serde_json::Value::as_f64)));
        let candidate = column(name, cells);
        let wide = candidate[0].chars().count() + 2;
        if wide <= room && left_out.is_empty() {
            room -= wide;
            columns.push(candidate);
        } else {
            left_out.push(name);
        }
    }
    let mut text = String::new();
    for line in 0..=rows.len() {
        let cells: Vec<&str> = columns.iter().map(|column| column[line].as_str()).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    if !left_out.is_empty() {
        text.extend([format!("(--json also has {})\n", left_out.join(", "))]);
    }
    text.push('\n');
    text
}

/// A title and its cells, right-aligned to one width.
fn column(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    let cells: Vec<String> = std::iter::once(name.to_owned()).chain(cells).collect();
    let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    cells.into_iter().map(|cell| format!("{cell:>width$}")).collect()
}

/// Four significant digits, or `-` where there is no number.
fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e9 {
        format!("{value}")
    } else if (1e-3..1e6).contains(&size) {
        let decimals = 3 - (size.log10().floor() as i32).clamp(-3, 3);
        format!("{value:.*}", decimals as usize)
    } else {
        format!("{value:.3e}")
    }
}

fn width() -> usize {
    std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_WIDTH)
}
