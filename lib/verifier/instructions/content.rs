//! `detectable_*`, `combination:*`, `startend:*` and `punctuation:*` of `IFEval`.

use std::sync::LazyLock;

use regex::Regex;
use serde::de::IgnoredAny;

use super::arguments::Arguments;
use super::length::parts;

/// Matches of a fixed pattern.
macro_rules! matches_of {
    ($pattern:literal, $text:expr) => {{
        static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new($pattern).ok());
        PATTERN.as_ref().into_iter().flat_map(|pattern| pattern.find_iter($text)).map(|found| found.as_str())
    }};
}

/// `[placeholders]`.
pub(super) fn placeholders(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    Ok(matches_of!(r"\[.*?\]", text).count() as f64 >= arguments.number("num_placeholders")?)
}

pub(super) fn postscript(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let text = text.to_lowercase();
    Ok(match arguments.text("postscript_marker")?.trim() {
        "P.P.S" => matches_of!(r"p\.\s?p\.\s?s", &text).next().is_some(),
        "P.S." => matches_of!(r"p\.\s?s\.", &text).next().is_some(),
        marker => text.contains(&marker.to_lowercase()),
    })
}

/// Lines that begin with `* ` or `-`.
pub(super) fn bullets(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = matches_of!(r"(?m)^\s*\*[^*].*$", text).count() + matches_of!(r"(?m)^\s*-.*$", text).count();
    Ok(num == arguments.count("num_bullets")?)
}

pub(super) fn constrained(text: &str) -> bool {
    ["My answer is yes.", "My answer is no.", "My answer is maybe."]
        .iter()
        .any(|answer| text.contains(answer))
}

/// `*highlighted*` and `**highlighted**`.
pub(super) fn highlights(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = num_marked(text, "*") + num_marked(text, "**");
    Ok(num as f64 >= arguments.number("num_highlights")?)
}

/// How often something that is not blank stands between two marks of asterisks on a line, without asterisks in it:
/// matches from left to right, none within another.
fn num_marked(text: &str, mark: &str) -> usize {
    let (mut num, mut rest) = (0, text);
    while let Some(opened) = rest.find(mark).and_then(|at| rest.get(at..)) {
        let content = &opened[mark.len()..];
        let len = content.find(['*', '\n']).unwrap_or(content.len());
        let (content, behind) = content.split_at(len);
        rest = match behind.strip_prefix(mark) {
            Some(behind) => {
                num += usize::from(!content.trim().is_empty());
                behind
            }
            None => &opened[1..],
        };
    }
    num
}

/// `SECTION 1`, `SECTION 2`, ..
pub(super) fn sections(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let pattern = format!(r"\s?{}\s?\d+\s?", regex::escape(arguments.text("section_spliter")?.trim()));
    let pattern = Regex::new(&pattern).map_err(|error| error.to_string())?;
    Ok(pattern.find_iter(text).count() as f64 >= arguments.number("num_sections")?)
}

/// One JSON value, bare or in a code fence.
pub(super) fn json(text: &str) -> bool {
    let text = text.trim();
    let opened = ["```json", "```Json", "```JSON", "```"].iter().find_map(|fence| text.strip_prefix(fence));
    let inner = opened.unwrap_or(text);
    let inner = inner.strip_suffix("```").unwrap_or(inner);
    serde_json::from_str::<IgnoredAny>(inner.trim()).is_ok()
}

/// `<<a title>>`.
pub(super) fn title(text: &str) -> bool {
    matches_of!(r"<<[^\n]+>>", text).any(|found| !found.trim_matches(['<', '>']).trim().is_empty())
}

/// Two different answers, `******` between them.
pub(super) fn two_responses(text: &str) -> bool {
    let answers = parts(text, "******").unwrap_or_default();
    matches!(answers.as_slice(), [first, second] if first != second)
}

pub(super) fn repeats_prompt(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let prompt = arguments.text("prompt_to_repeat")?.trim().to_lowercase();
    Ok(text.trim().to_lowercase().starts_with(&prompt))
}

pub(super) fn ends_with(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let phrase = arguments.text("end_phrase")?.trim().to_lowercase();
    Ok(text.trim().trim_matches('"').to_lowercase().ends_with(&phrase))
}

pub(super) fn quoted(text: &str) -> bool {
    let text = text.trim();
    text.len() > 1 && text.starts_with('"') && text.ends_with('"')
}

pub(super) fn no_comma(text: &str) -> bool {
    !text.contains(',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_parts_are_the_matches_of_a_pattern() {
        let patterns = [("*", r"\*[^\n*]*\*"), ("**", r"\*\*[^\n*]*\*\*")];
        let patterns = patterns.map(|(mark, pattern)| (mark, Regex::new(pattern).unwrap()));
        // All texts of up to eight of these.
        for code in 0..5_usize.pow(8) {
            let digits =
                std::iter::successors(Some(code), |rest| Some(rest / 5)).take_while(|rest| *rest > 0);
            let text: String = digits.map(|rest| ["*", "**", "a", " ", "\n"][rest % 5]).collect();
            for (mark, pattern) in &patterns {
                let is_said = |found: &regex::Match<'_>| !found.as_str().trim_matches('*').trim().is_empty();
                let expected = pattern.find_iter(&text).filter(is_said).count();
                assert_eq!(num_marked(&text, mark), expected, "{text:?} {mark}");
            }
        }
    }
}
