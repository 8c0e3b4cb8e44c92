//! How a run was configured and where it ran; of several runs only what differs.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::samples::cut;
use crate::read_run::Run;

/// Bytes of a configuration or a provenance.
const MAX_TEXT: usize = 60_000;

/// The resolved configuration of one run.
pub fn configuration(run: &Run) -> Markup {
    let Some(text) = &run.config_text else { return html! {} };
    html! {
        section #configuration {
            h2 { "Configuration" }
            p.explain { "The resolved " code { "run.toml" } ": start another run with it by " code { "sbatch/loop.sh run.toml" } "." }
            details.card open[text.len() < 4000] {
                summary { "run.toml" }
                pre.toml {
                    @for line in cut(text, MAX_TEXT).lines() { (toml_line(line)) "\n" }
                }
            }
        }
    }
}

fn toml_line(line: &str) -> Markup {
    html! {
        @if line.starts_with('[') { b { (line) } }
        @else if line.starts_with('#') { span.note { (line) } }
        @else if let Some((key, value)) = line.split_once(" = ") { span.key { (key) } " = " (value) }
        @else { (line) }
    }
}

/// Versions, hashes, hosts, and how the job's attempts ended.
pub fn provenance(run: &Run) -> Markup {
    let mut rows = BTreeMap::new();
    if let Some(value) = &run.provenance {
        flatten("", value, &mut rows);
    }
    let attempts = &run.summary.attempts;
    html! {
        section #provenance {
            h2 { "Provenance" }
            @if !rows.is_empty() {
                details.card open[rows.len() <= 30] {
                    summary { "run.json: what made this run" }
                    table.numbers { tbody { @for (key, value) in &rows { tr { td { code { (key) } } td.text { (cut(value, 2000)) } } } } }
                }
            }
            @if !attempts.is_empty() {
                div.card {
                    h3 { "Starts of the job" }
                    table.numbers {
                        thead { tr { th { "attempt" } th { "job" } th { "ended" } th { "why" } } }
                        tbody {
                            @for (attempt, word) in attempts {
                                tr {
                                    td { (attempt.number) } td { (attempt.job_id.as_deref().unwrap_or("–")) } td { (word) }
                                    td.text { @for failed in &attempt.failures { (failed.role) ": " (failed.message) " " } }
                                }
                            }
                        }
                    }
                }
            }
            @if !run.summary.roles.is_empty() {
                div.card {
                    h3 { "Ranks of the newest start" }
                    table.numbers {
                        thead { tr { th { "role" } th.num { "ranks" } th.num { "restarts" } th.num { "processors in use" } th.num { "peak memory" } } }
                        tbody {
                            @for role in &run.summary.roles {
                                tr {
                                    td { (role.name) } td.num { (role.num_ranks) } td.num { (role.num_restarts) }
                                    td.num { @match role.cpu_efficiency { Some(share) => (format!("{:.0} %", 100.0 * share)), None => "–" } }
                                    td.num { (format!("{:.2} GB", role.max_rss_bytes as f64 / 1e9)) }
                                }
                            }
                        }
                    }
                }
            }
            @if !run.missing.is_empty() {
                div.card {
                    h3 { "What is not shown" }
                    ul { @for sentence in &run.missing { li { (sentence) } } }
                }
            }
        }
    }
}

/// Every leaf of a JSON value under its dotted name.
fn flatten(prefix: &str, value: &Value, rows: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, value, rows);
            }
        }
        Value::String(text) => {
            rows.insert(prefix.to_owned(), text.clone());
        }
        other => {
            rows.insert(prefix.to_owned(), other.to_string());
        }
    }
}

/// The settings in which several runs differ.
pub fn differences(runs: &[Run]) -> Markup {
    let rows =
        differing(&runs.iter().map(|run| run.config_text.as_deref().unwrap_or_default()).collect::<Vec<_>>());
    html! {
        section #settings {
            h2 { "Settings that differ" }
            @if rows.is_empty() { p.note { "None: these runs have the same configuration." } }
            @else {
                div.card.wide {
                    table.numbers {
                        thead { tr { th { "setting" } @for run in runs { th { (run.name) } } } }
                        tbody {
                            @for (key, values) in &rows {
                                tr { td { code { (key) } } @for value in values { td.text { (value.as_deref().unwrap_or("–")) } } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Name and value in each text of every setting that is not the same in all.
fn differing(texts: &[&str]) -> Vec<(String, Vec<Option<String>>)> {
    let settings: Vec<BTreeMap<String, String>> = texts.iter().map(|text| settings(text)).collect();
    let mut keys: Vec<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let row =
        |key: &String| (key.clone(), settings.iter().map(|all| all.get(key).cloned()).collect::<Vec<_>>());
    keys.into_iter().map(row).filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect()
}

/// The settings of a resolved file, which has one on each line.
fn settings(text: &str) -> BTreeMap<String, String> {
    let mut section = String::new();
    let mut settings = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            settings.insert(format!("{section}.{}", key.trim()), value.trim().to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_differ_are_shown() {
        let rows = differing(&[
            "[run]\nseed = 1\n[train]\nlr = 1e-5\n",
            "[run]\nseed = 1\n[train]\nlr = 2e-5\nclip = 1\n",
        ]);
        let expected = [
            ("train.clip".to_owned(), vec![None, Some("1".to_owned())]),
            ("train.lr".to_owned(), vec![Some("1e-5".to_owned()), Some("2e-5".to_owned())]),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn json_is_flat_under_dotted_names() {
        let mut rows = BTreeMap::new();
        flatten("", &serde_json::json!({"a": {"b": "x"}, "c": [1]}), &mut rows);
        assert_eq!(
            rows.into_iter().collect::<Vec<_>>(),
            [("a.b".into(), "x".into()), ("c".into(), "[1]".into())]
        );
    }
}
