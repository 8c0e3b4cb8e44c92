//! Agreement with public verdicts, and the README's table of it, made here.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;

use crate::{data, verdict};

/// Verdicts of the data that are not ours, by label and response, each with its reason.
const DISAGREEMENTS: [(&str, &str, &str); 2] = [
    (
        "$9$",
        "Answer \\( \n 9 \n \\)",
        "a formula between `\\(` and `\\)` may hold line breaks; what is between them is 9",
    ),
    (
        "$1 - \\frac{1}{\\mathrm{e}}$",
        "$1 + \\frac{1}{\\mathrm{e}}$",
        "1 - 1/e is 0.632..., 1 + 1/e is 1.367...: the verdict is wrong",
    ),
];

/// At least this share of verdicts has to agree.
const AGREEMENT: f64 = 0.97;

/// Models whose solutions of grade-school problems were judged.
const MODELS: [&str; 4] = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"];

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

/// The type that judges a row: some ask for fewer decimals.
fn kind(row: &Value) -> String {
    row["precision"].as_u64().map_or("math".to_owned(), |decimals| format!("math:decimals={decimals}"))
}

/// Groups of rows with how many there are and how many agree.
fn equivalence(rows: &[Value]) -> BTreeMap<String, (usize, usize)> {
    let mut groups: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for row in rows {
        let (label, response) = (text(row, "gold"), text(row, "pred"));
        let (reward, reason) = verdict(&kind(row), response, label);
        let agrees = (reward > 0.5) == (row["expected"] == 1);
        let known = DISAGREEMENTS.iter().any(|(gold, pred, _)| (*gold, *pred) == (label, response));
        assert!(agrees != known, "{label} / {response}: expected {}, {reward}: {reason}", row["expected"]);
        let group = text(row, "group").rsplit('.').next().unwrap().to_owned();
        let count = groups.entry(group).or_default();
        *count = (count.0 + 1, count.1 + usize::from(agrees));
    }
    groups
}

/// Solutions with how many there are and how many agree, under a type.
fn solutions(kind: &str, rows: &[Value]) -> (usize, usize) {
    let mut count = (0, 0);
    for row in rows {
        // The data state the answer behind `A:`.
        let label = text(row, "ground_truth").rsplit_once("A:").unwrap().1.trim();
        for model in MODELS {
            let (reward, reason) = verdict(kind, text(&row[model], "solution"), label);
            let agrees = (reward > 0.5) == row[model]["is_correct"].as_bool().unwrap();
            assert!(agrees, "{kind}: {model} on {}: {reason}", text(row, "question"));
            count = (count.0 + 1, count.1 + usize::from(agrees));
        }
    }
    count
}

/// Set `SLIME_WRITE_TABLE=1` to write the table into the README instead of comparing it.
#[test]
fn table_of_the_readme_is_what_the_rewards_say() {
    let (Some(rows), Some(problems)) = (data("math_equivalence.jsonl"), data("gsm8k_model_solutions.jsonl"))
    else {
        return;
    };
    let groups = equivalence(&rows);
    let num_rows: usize = groups.values().map(|(num, _)| num).sum();
    let num_agreed: usize = groups.values().map(|(_, agreed)| agreed).sum();
    assert!(num_agreed as f64 >= AGREEMENT * num_rows as f64, "{num_agreed} of {num_rows}");
    let mut table = "| verdicts of | type | rows | agreed |\n|---|---|---|---|\n".to_owned();
    for (group, (num, agreed)) in &groups {
        let _ = writeln!(table, "| Math-Verify, {} | `math` | {num} | {agreed} |", group.replace('_', " "));
    }
    let _ = writeln!(table, "| Math-Verify, all | `math` | {num_rows} | {num_agreed} |");
    for kind in ["math", "gsm8k", "number"] {
        let (num, agreed) = solutions(kind, &problems);
        let _ = writeln!(table, "| GSM8K, solutions of four models | `{kind}` | {num} | {agreed} |");
    }
    table += "\n| label | response | their verdict | why ours differs |\n|---|---|---|---|\n";
    for (label, response, reason) in DISAGREEMENTS {
        let row =
            rows.iter().find(|row| text(row, "gold") == label && text(row, "pred") == response).unwrap();
        let told = if row["expected"] == 1 { "equal" } else { "not equal" };
        let _ = writeln!(table, "| `{label}` | `{}` | {told} | {reason} |", response.replace('\n', "⏎"));
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- mathematics: begin -->\n", "<!-- mathematics: end -->");
    let (before, rest) = readme.split_once(begin).expect("a table of mathematics in the README");
    let (old, after) = rest.split_once(end).expect("the end of the table");
    if std::env::var_os("SLIME_WRITE_TABLE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert!(old == table, "the README's table is not this one (SLIME_WRITE_TABLE=1 writes it):\n{table}");
}
