//! What a sample's runs say together, and when an output is the expected one.

use slime_sandbox::Report;

use super::Scoring;
use super::metadata::Compare;
use crate::Verdict;

/// How many cases or assertions passed, and why the first that did not did not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tally {
    pub(super) num_passed: usize,
    pub(super) num_total: usize,
    pub(super) problem: Option<String>,
}

impl Tally {
    /// Nothing of `num_total` passed.
    pub(super) fn failed(num_total: usize, problem: impl Into<String>) -> Self {
        Self { num_passed: 0, num_total, problem: Some(problem.into()) }
    }

    /// The verdict under this scoring.
    pub(super) fn verdict(self, scoring: Scoring) -> Verdict {
        let is_right = self.num_passed == self.num_total && self.num_total > 0 && self.problem.is_none();
        let counted = format!("{} of {} passed", self.num_passed, self.num_total);
        let reason = match self.problem {
            Some(problem) => format!("{counted}: {problem}"),
            None => counted,
        };
        match scoring {
            Scoring::All => Verdict::of(is_right, reason),
            Scoring::Rate => {
                let reward = self.num_passed as f64 / self.num_total.max(1) as f64;
                Verdict { reward, ..Verdict::of(is_right, reason) }
            }
        }
    }
}

/// Whether `got` is the expected output.
pub(super) fn is_expected(got: &[u8], expected: &str, compare: Compare) -> bool {
    let Ok(got) = std::str::from_utf8(got) else { return false };
    match compare {
        Compare::Exact => got == expected,
        Compare::Tokens => got.split_whitespace().eq(expected.split_whitespace()),
        Compare::Lines => {
            let lines = |text: &str| -> Vec<String> {
                text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
            };
            lines(got) == lines(expected)
        }
    }
}

/// The beginning of a text, on one line.
pub(super) fn shown(text: &[u8]) -> String {
    const MAX_CHARS: usize = 80;
    let text = String::from_utf8_lossy(text);
    let mut short: String = text.trim_end().chars().take(MAX_CHARS).collect();
    if text.trim_end().chars().count() > MAX_CHARS {
        short.push_str("...");
    }
    format!("{short:?}")
}

/// How a program ended, and the last thing it said on stderr.
pub(super) fn how_it_ended(report: &Report) -> String {
    match last_line(&report.stderr) {
        Some(line) => format!("{}: {line}", report.outcome),
        None => report.outcome.to_string(),
    }
}

/// The last line of what a program said on stderr that is not empty.
fn last_line(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(|line| line.trim().chars().take(200).collect())
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "rewards of 0, 1 and 3/4 are exact")]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_compared_as_asked() {
        for (got, expected, lines, tokens, exact) in [
            ("1\n2\n", "1\n2\n", true, true, true),
            ("1 \n2", "1\n2\n\n", true, true, false),
            ("1 2", "1\n2", false, true, false),
            ("1\n\n2", "1\n2", false, true, false),
            (" 1", "1", false, true, false),
            ("", "", true, true, true),
            ("", "1", false, false, false),
            ("1\n1", "1", false, false, false),
        ] {
            let all = [Compare::Lines, Compare::Tokens, Compare::Exact];
            let results = all.map(|compare| is_expected(got.as_bytes(), expected, compare));
            assert_eq!(results, [lines, tokens, exact], "{got:?} {expected:?}");
        }
        assert!(!is_expected(&[0xff], "\u{fffd}", Compare::Lines));
    }

    #[test]
    fn share_of_what_passed_is_the_rate_and_all_has_to_pass_for_one() {
        let tally = Tally { num_passed: 3, num_total: 4, problem: Some("assertion".to_owned()) };
        assert_eq!(tally.clone().verdict(Scoring::All).reward, 0.0);
        let verdict = tally.verdict(Scoring::Rate);
        assert_eq!((verdict.reward, verdict.reason.as_str()), (0.75, "3 of 4 passed: assertion"));
        // All assertions passed, but the tests did not come to their end.
        let tally = Tally { num_passed: 4, num_total: 4, problem: Some("a statement after them".to_owned()) };
        assert_eq!(tally.verdict(Scoring::All).reward, 0.0);
        assert_eq!(Tally::default().verdict(Scoring::All).reward, 0.0);
    }
}
