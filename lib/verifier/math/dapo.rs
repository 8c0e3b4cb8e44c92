//! The `dapo` reward: the last line `Answer: ...` near the end says the label's whole number; right is 1, wrong -1.

use std::sync::LazyLock;

use regex::Regex;

use crate::error::{Error, Result};
use crate::math::slime_form::{float, whole};
use crate::{Row, RowVerifier, Verdict};

/// Characters at the end of a response that are looked at, and those in the strict mode.
const TAIL: usize = 300;
const STRICT_TAIL: usize = 100;
/// A longer label is no number.
const MAX_LABEL_BYTES: usize = 4096;
/// Stands for a missing answer.
const INVALID: &str = "[INVALID]";

/// Texts and what replaces them, in order.
const SUBSTITUTIONS: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

/// Texts that go, in order.
const REMOVED: [&str; 43] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
    "\\dots",
    "<|im_end|>",
    "<|endoftext|>",
];

/// Patterns and what replaces them, in order: the first formula is kept, wrappers go, shorthands get their braces.
const PATTERNS: [(&str, &str); 7] = [
    (r"(?s)^.*?\$(.*?)\$.*$", "$$${1}$$"),
    (r"\\text\{(.*?)\}", "${1}"),
    (r"\\textbf\{(.*?)\}", "${1}"),
    (r"\\overline\{(.*?)\}", "${1}"),
    (r"\\boxed\{(.*)\}", "${1}"),
    (r"frac([^{])(.)", "frac{${1}}{${2}}"),
    (r"sqrt([^{])", "sqrt{${1}}"),
];

static ANSWER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(?i)Answer\s*:\s*([^\n]+)").ok());
static REPLACED: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    PATTERNS.iter().filter_map(|(pattern, by)| Some((Regex::new(pattern).ok()?, *by))).collect()
});

/// The `dapo` reward.
#[derive(Debug)]
pub(crate) struct Dapo {
    /// Whether the last box is compared as it is, instead of the line that says `Answer:`.
    pub(crate) is_strict: bool,
}

impl RowVerifier for Dapo {
    fn verdict(&self, sample: &Row<'_>) -> Result<Verdict> {
        let label = sample.expected();
        let (found, gold) = if self.is_strict {
            (boxed(tail(sample.response, STRICT_TAIL)).map(str::to_owned), label.to_owned())
        } else {
            let gold = Some(label)
                .filter(|label| label.len() <= MAX_LABEL_BYTES)
                .and_then(|label| float(&normal(label)))
                .map(|value| whole(value.trunc()))
                .ok_or_else(|| Error::LabelWithoutNumber {
                    name: "dapo",
                    label: label.chars().take(80).collect(),
                })?;
            (Some(stated(tail(sample.response, TAIL))), gold)
        };
        let is_right = found.as_ref() == Some(&gold);
        let answer = found.clone();
        let reason = match found {
            None => "no box".to_owned(),
            Some(found) if is_right => format!("the answer {found} is the label"),
            Some(found) => format!("the answer is {found}, the label is {gold}"),
        };
        Ok(Verdict { answer, ..Verdict::new(if is_right { 1.0 } else { -1.0 }, reason) })
    }
}

/// The normal form of what the last `Answer:` says.
fn stated(text: &str) -> String {
    let last =
        ANSWER.as_ref().and_then(|answer| answer.captures_iter(text).last()).and_then(|found| found.get(1));
    normal(last.map_or(INVALID, |found| found.as_str()))
}

/// The last characters of a text.
fn tail(text: &str, num: usize) -> &str {
    text.char_indices().rev().nth(num - 1).map_or(text, |(at, _)| &text[at..])
}

/// The content of the last `\boxed{`, where it closes.
fn boxed(text: &str) -> Option<&str> {
    let begin = text.rfind("\\boxed{")?;
    crate::math::slime_box::extract(&text[begin..])
}

/// The normal form of an answer.
pub(crate) fn normal(answer: &str) -> String {
    let mut text = answer.rsplit('=').next().unwrap_or(answer).to_owned();
    for (from, to) in SUBSTITUTIONS {
        text = text.replace(from, to);
    }
    for removed in REMOVED {
        text = text.replace(removed, "");
    }
    for (pattern, by) in REPLACED.iter() {
        text = pattern.replace_all(&text, *by).into_owned();
    }
    text = text.replace('$', "");
    let digits = text.replace(',', "");
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        text = digits;
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms_are_those_of_the_table() {
        for (text, expected) in [
            ("x = 42", "42"),
            ("an answer", "answer"),
            ("42 square", "42"),
            ("100 dollars", "100"),
            (r"\text{hello}", "hello"),
            (r"\boxed{42}", "42"),
            ("1,234,567", "1234567"),
            ("a b c", "bc"),
            ("42<|endoftext|>", "42"),
            ("42<|im_end|>", "42"),
            ("an apple a day", "appleday"),
            (r"\frac12", r"\frac{1}{2}"),
            ("10{,}000", "10000"),
            ("units", ""),
            ("1,2", "12"),
            ("0.50", "0.50"),
            (r"\mbox{hi}", "hi"),
            ("so $42$ and $43$", "42"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }
}
