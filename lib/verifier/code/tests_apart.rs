//! Tests that call functions: what is told to the two processes, and what the one that judges reports.

use serde::Deserialize;
use serde_json::{Value, json};
use slime_sandbox::{Outcome, Report};

use super::bad_row;
use super::judge::Tally;
use super::metadata::Tests;
use crate::error::Result;

/// What the process of the tests reports.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TestReport {
    Broken { broken: String },
    Ran { passed: usize, total: usize, problems: Vec<String> },
}

/// What the process of the solution loads: the prompt, whose imports and helpers code may rely on, then the code; or, for
/// code that only continues the prompt, both as one text.
pub(super) fn sources(code: &str, tests: &Tests) -> Value {
    let text = |text: &str, is_optional: bool| json!({ "text": text, "is_optional": is_optional });
    let sources = match (&tests.prompt, tests.under_test.first()) {
        (Some(prompt), Some(entry)) if !defines(code, entry) => vec![text(&format!("{prompt}{code}"), false)],
        (Some(prompt), _) => vec![text(prompt, true), text(code, false)],
        (None, _) => vec![text(code, false)],
    };
    json!({ "sources": sources })
}

/// Whether code defines a name at its top.
fn defines(code: &str, name: &str) -> bool {
    code.lines().any(|line| {
        let rest = ["def ", "async def ", "class "].iter().find_map(|word| line.strip_prefix(word));
        let rest = rest.map_or(line, str::trim_start);
        let ends = |rest: &str| rest.trim_start().starts_with(['(', ':', '=']);
        rest.strip_prefix(name).is_some_and(ends)
    })
}

/// What the process of the tests is asked.
pub(super) fn questions(tests: &Tests) -> Value {
    json!({
        "trusted": tests.prompt.iter().collect::<Vec<_>>(),
        "setup": tests.setup,
        "tests": tests.texts,
        "is_split": tests.texts.len() == 1,
        "under_test": tests.under_test,
        "check": tests.has_check,
    })
}

/// What the process of the tests says of a solution whose process ended before it answered.
const LOST: &str = "the process of the solution ended";

/// Whether the tests found their solution gone.
pub(super) fn lost_its_solution(report: &Report) -> bool {
    matches!(
        serde_json::from_slice(&report.report),
        Ok(TestReport::Ran { problems, .. }) if problems.first().is_some_and(|problem| problem.contains(LOST))
    )
}

/// What the process of the tests said.
pub(super) fn tally(report: &Report, language: &str) -> Result<Tally> {
    if report.outcome != Outcome::Exited(0) {
        return Ok(Tally::failed(1, format!("the tests did not end: {}", report.outcome)));
    }
    match serde_json::from_slice(&report.report) {
        Ok(TestReport::Broken { broken }) => {
            Err(bad_row(format!("metadata: the tests are no {language}: {broken}")))
        }
        Ok(TestReport::Ran { passed, total, problems }) => {
            let lost = String::from_utf8_lossy(&report.stderr);
            let problem = problems.into_iter().next();
            let problem =
                problem.map(|problem| if lost.is_empty() { problem } else { format!("{lost} ({problem})") });
            Ok(Tally { num_passed: passed, num_total: total, problem })
        }
        Err(_) => Ok(Tally::failed(1, "the tests ended without a report")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_defines_the_function_stands_for_itself() {
        assert!(defines("import re\ndef f(a):\n  return 1", "f"));
        assert!(defines("f = lambda a: 1", "f") && defines("async def f():\n  pass", "f"));
        assert!(
            !defines("    return f(1)\n", "f") && !defines("def ff(): pass", "f") && !defines("f(1)", "g")
        );
        let tests =
            Tests { prompt: Some("def f():\n".into()), under_test: vec!["f".into()], ..Tests::default() };
        let continued = sources("    return 1", &tests);
        assert_eq!(continued["sources"][0]["text"], "def f():\n    return 1");
        assert_eq!(sources("def f(): return 1", &tests)["sources"][1]["text"], "def f(): return 1");
    }
}
