//! Writes the verdict: as JSON, as warnings, and as the one error that names every bad node.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;
use slime_cli::{Failure, Output, exit};

use super::check::{Check, Verdict};
use super::judge::Judged;

/// The schema of the JSON.
const SCHEMA: &str = "slime-preflight-verdict/1";
/// Nodes that a message names; the JSON has all.
const MAX_NAMES: usize = 16;

/// Writes the whole verdict to a file or, with `-`, to stdout.
///
/// # Errors
/// The output cannot be written.
pub fn write_json(judged: &Judged, output: &str) -> Result<(), Failure> {
    let nodes: Vec<_> = judged
        .nodes
        .iter()
        .map(|node| json!({"node": node.name, "verdict": node.verdict, "checks": node.checks}))
        .collect();
    let verdict = json!({
        "schema": SCHEMA,
        "verdict": judged.verdict,
        "exclude": judged.exclude,
        "everywhere": judged.everywhere,
        "nodes": nodes,
    });
    let mut output = Output::create(output)?;
    writeln!(output, "{verdict:#}").map_err(|error| Failure::io(output.name(), &error))?;
    output.finish()
}

/// A sentence for each kind of warning, with the nodes that have it.
pub fn warnings(judged: &Judged) -> Vec<String> {
    sentences(judged, Verdict::Warn)
}

/// The error that ends a preflight with a bad node; none when all nodes are fit.
pub fn failure(judged: &Judged) -> Option<Failure> {
    if judged.verdict < Verdict::Bad {
        return None;
    }
    let num_bad = judged.nodes.iter().filter(|node| node.verdict == Verdict::Bad).count();
    let (num, are) = (judged.nodes.len(), if num_bad == 1 { "is" } else { "are" });
    let mut message = format!("{num_bad} of {num} nodes {are} not fit for this job");
    for sentence in sentences(judged, Verdict::Bad) {
        message += "\n  ";
        message += &sentence;
    }
    let failure = Failure::new(exit::UNAVAILABLE, message);
    Some(match (judged.everywhere.is_empty(), judged.exclude.is_empty()) {
        (true, _) => failure.with_hint(format!("sbatch --exclude={}", judged.exclude.join(","))),
        (false, true) => failure.with_hint("every node has this, so leaving nodes out does not help"),
        (false, false) => failure.with_hint(format!(
            "sbatch --exclude={}; {} bad on all nodes that answered",
            judged.exclude.join(","),
            judged.everywhere.join(", ") + if judged.everywhere.len() == 1 { " is" } else { " are" }
        )),
    })
}

/// `n1,n2: memlock: got 8 MiB, expected 64 MiB (hint)`: equal findings in one sentence.
fn sentences(judged: &Judged, verdict: Verdict) -> Vec<String> {
    let mut findings: BTreeMap<&Check, Vec<&str>> = BTreeMap::new();
    for node in &judged.nodes {
        for check in node.checks.iter().filter(|check| check.verdict == verdict) {
            findings.entry(check).or_default().push(&node.name);
        }
    }
    let sentence = |(check, nodes): (&Check, Vec<&str>)| {
        let shown = nodes.len().min(MAX_NAMES);
        let mut text = nodes[..shown].join(",");
        if shown < nodes.len() {
            text.extend([format!(" and {} more", nodes.len() - shown)]);
        }
        text.extend([format!(": {}: got {}", check.name, check.got)]);
        text += &check.expected.as_ref().map(|expected| format!(", expected {expected}")).unwrap_or_default();
        text + &check.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default()
    };
    findings.into_iter().map(sentence).collect()
}
