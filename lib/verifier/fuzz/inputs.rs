//! What each target makes of an input: rewards by name, and the rows that they score. The ordinary tests replay the corpus
//! by the same functions.

use serde_json::{Value, json};
use slime_verifier::Row;

/// Every mathematics reward.
pub const MATHEMATICS: [&str; 8] =
    ["math", "slime_math", "deepscaler", "dapo", "dapo:strict_box", "mathd", "gsm8k", "number"];

/// Rewards of text that need no metadata.
pub const TEXT: [&str; 13] = [
    "exact",
    "exact_match",
    "f1",
    "gpqa",
    "format:think_answer",
    "format:json",
    "format:xml",
    "format:regex=(a+)+$|(x|x)*y|(?i)the\\s+answer\\s+is\\s*(.*)*z",
    "length:min=3 max=9 slack=5 unit=words",
    "repetition:n=3",
    "boxed:f1",
    "guard:f1",
    "guard:math",
];

/// Nesting of long inputs.
const MAX_DEPTH: usize = 10_000;

/// A label, a tab and a response, and the other way round, under every mathematics reward.
pub fn math(text: &str, score: &mut dyn FnMut(&str, Row<'_>)) {
    let (label, response) = text.split_once('\t').unwrap_or(("1", text));
    for kind in MATHEMATICS {
        score(kind, labelled(response, label));
    }
    score("math", labelled(label, response));
}

/// What is asked, a tab, its arguments as JSON, a tab and a response: an instruction of `IFEval` or `IFBench`, a JSON Schema,
/// or `text`, the other rewards of text, whose label the arguments then are.
pub fn text(text: &str, score: &mut dyn FnMut(&str, Row<'_>)) {
    let mut parts = text.splitn(3, '\t');
    let mut part = || parts.next().unwrap_or_default();
    let (asked, arguments, response) = (part(), part(), part());
    if asked == "text" {
        for kind in TEXT {
            score(kind, labelled(response, arguments));
        }
        return;
    }
    let Ok(arguments) = serde_json::from_str::<Value>(arguments) else { return };
    let (kind, metadata) = if asked == "json_schema" {
        ("json_schema", json!({ "json_schema": arguments }))
    } else {
        ("ifeval:loose", json!({ "instruction_id_list": [asked], "kwargs": [arguments] }))
    };
    let metadata = metadata.to_string();
    score(kind, Row { response, metadata: Some(&metadata), ..Row::default() });
}

/// A label and three pieces between tabs, out of which responses of `max_bytes` are made: the middle one over and over,
/// and the outer ones nested ten thousand times, under every reward that needs no metadata.
pub fn long(text: &str, max_bytes: usize, score: &mut dyn FnMut(&str, Row<'_>)) {
    let mut parts = text.splitn(4, '\t');
    let mut part = || parts.next().unwrap_or_default();
    let (label, open, inner, close) = (part(), part(), part(), part());
    let outer = open.len() + close.len();
    let times = max_bytes.saturating_sub(outer).checked_div(inner.len()).unwrap_or(0);
    let long = format!("{open}{}{close}", inner.repeat(times));
    let depth = max_bytes.checked_div(outer).unwrap_or(0).min(MAX_DEPTH);
    let deep = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
    for response in [&long, &deep] {
        for kind in MATHEMATICS.into_iter().chain(TEXT) {
            score(kind, labelled(response, label));
        }
        score("math", labelled(label, response));
    }
}

fn labelled<'a>(response: &'a str, label: &'a str) -> Row<'a> {
    Row { response, label: Some(label), ..Row::default() }
}
