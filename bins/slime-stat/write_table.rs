//! Steps and evaluations as aligned columns that fit the terminal.

use std::collections::HashSet;

use crate::names::{REWARD, REWARD_MEAN, rank};
use crate::read_metrics::{Metrics, Numbers};

/// Width when the terminal does not tell.
const DEFAULT_WIDTH: usize = 120;
/// More names than these are only counted.
const MAX_NAMED: usize = 16;

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
    let mut names: HashSet<&str> =
        rows.iter().flat_map(|(_, numbers)| numbers.keys().map(String::as_str)).collect();
    names.remove("time");
    if names.contains(REWARD) {
        names.remove(REWARD_MEAN);
    }
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable_by_key(|name| (rank(name), *name));
    let titles = titles(&names);

    let mut columns: Vec<Vec<String>> = identity
        .iter()
        .enumerate()
        .map(|(at, name)| column(name, rows.iter().map(|(identity, _)| identity[at].clone())))
        .collect();
    let mut room = width().saturating_sub(columns.iter().map(|column| column[0].chars().count() + 2).sum());
    let mut left_out = Vec::new();
    for (name, title) in names.into_iter().zip(titles) {
        if !left_out.is_empty() {
            left_out.push(name);
            continue;
        }
        let cells =
            rows.iter().map(|(_, numbers)| number(numbers.get(name).and_then(serde_json::Value::as_f64)));
        let candidate = column(title, cells);
        let wide = candidate[0].chars().count() + 2;
        if wide <= room {
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
    match left_out.len() {
        0 => {}
        num if num > MAX_NAMED => {
            text.extend([format!("(--json has {num} more numbers, --html curves of them)\n")]);
        }
        _ => text.extend([format!("(--json also has {})\n", left_out.join(", "))]),
    }
    text.push('\n');
    text
}

/// Names without what stands before their first `/`, where that leaves them different.
fn titles<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let short = |name: &'a str| name.split_once('/').map_or(name, |(_, rest)| rest);
    let is_alone = |title: &str| names.iter().filter(|name| short(name) == title).count() == 1;
    names.iter().map(|name| if is_alone(short(name)) { short(name) } else { name }).collect()
}

/// A title and its cells, right-aligned to one width.
fn column(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    let cells: Vec<String> = std::iter::once(name.to_owned()).chain(cells).collect();
    let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    cells.into_iter().map(|cell| format!("{cell:>width$}")).collect()
}

/// Four significant digits, or `-` where there is no number.
pub fn number(value: Option<f64>) -> String {
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
