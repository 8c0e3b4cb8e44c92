//! The `format` reward: the response has a form: thought and answer blocks, JSON, XML, or a pattern.

use quick_xml::Reader;
use quick_xml::events::Event;
use regex::Regex;
use serde::de::IgnoredAny;

use crate::answer::answer_text;
use crate::error::Result;
use crate::options::Options;
use crate::{Row, RowVerifier, Verdict};

/// The form that is asked for.
#[derive(Debug)]
pub(crate) enum Format {
    /// `<think>...</think><answer>...</answer>` and nothing else, each tag once.
    ThinkAnswer,
    /// One JSON value, bare or in a code fence.
    Json,
    /// One well-formed XML element, bare or in a code fence.
    Xml,
    /// Somewhere in the response the pattern matches.
    Regex(Regex),
}

impl RowVerifier for Format {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        Ok(match self.problem(row.response) {
            None => Verdict::of(true, "the form is right"),
            Some(problem) => Verdict::of(false, problem),
        })
    }
}

/// The pattern of `format:regex=`.
pub(crate) fn pattern(options: &mut Options) -> Result<Regex> {
    Ok(Regex::new(&options.rest())?)
}

impl Format {
    /// What is wrong with the form, or `None`.
    fn problem(&self, response: &str) -> Option<String> {
        match self {
            Self::ThinkAnswer => think_answer(response).map(str::to_owned),
            Self::Json => serde_json::from_str::<IgnoredAny>(unfenced(response))
                .err()
                .map(|error| format!("not JSON: {error}")),
            Self::Xml => xml(unfenced(response)),
            Self::Regex(pattern) => {
                (!pattern.is_match(response)).then(|| format!("{} does not match", pattern.as_str()))
            }
        }
    }
}

fn think_answer(response: &str) -> Option<&'static str> {
    for tag in ["<think>", "</think>", "<answer>", "</answer>"] {
        if response.matches(tag).count() != 1 {
            return Some("each of <think>, </think>, <answer>, </answer> must appear once");
        }
    }
    let inner = response.trim().strip_prefix("<think>").and_then(|rest| rest.strip_suffix("</answer>"));
    match inner.and_then(|inner| inner.split_once("</think>")) {
        Some((_, answer)) if answer.trim_start().starts_with("<answer>") => None,
        _ => Some("expected <think>...</think> <answer>...</answer> and nothing around it"),
    }
}

/// The answer without its Markdown code fence.
pub(crate) fn unfenced(response: &str) -> &str {
    let text = answer_text(response).trim();
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match inner.and_then(|inner| inner.split_once('\n')) {
        Some((language, body)) if language.trim().chars().all(char::is_alphanumeric) => body.trim(),
        _ => text,
    }
}

/// Well-formedness: matching ends, one root, nothing but blanks around it.
fn xml(text: &str) -> Option<String> {
    let mut reader = Reader::from_str(text);
    let (mut depth, mut roots) = (0_usize, 0_usize);
    loop {
        match reader.read_event() {
            Err(error) => return Some(format!("not XML: {error}")),
            Ok(Event::Start(element)) => {
                if let Some(Err(error)) = element.attributes().find(std::result::Result::is_err) {
                    return Some(format!("not XML: {error}"));
                }
                roots += usize::from(depth == 0);
                depth += 1;
            }
            Ok(Event::Empty(element)) => {
                if let Some(Err(error)) = element.attributes().find(std::result::Result::is_err) {
                    return Some(format!("not XML: {error}"));
                }
                roots += usize::from(depth == 0);
            }
            Ok(Event::End(_)) => depth = depth.saturating_sub(1),
            Ok(Event::Text(content)) if depth == 0 && !content.iter().all(u8::is_ascii_whitespace) => {
                return Some("not XML: text outside the root element".to_owned());
            }
            Ok(Event::CData(_) | Event::GeneralRef(_)) if depth == 0 => {
                return Some("not XML: text outside the root element".to_owned());
            }
            Ok(Event::Eof) => break,
            Ok(_) => {}
        }
    }
    match (depth, roots) {
        (0, 1) => None,
        (0, _) => Some(format!("not XML: expected one root element, got {roots}")),
        _ => Some("not XML: an element is not closed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thought_and_answer_blocks_are_strict() {
        let right = |text: &str| Format::ThinkAnswer.problem(text).is_none();
        assert!(right("<think>a\nb</think>\n<answer>4</answer>\n"));
        assert!(!right("<think>a</think> so <answer>4</answer>"));
        assert!(!right("<answer>4</answer><think>a</think>"));
        assert!(!right("<think>a</think><answer>4</answer> bye"));
        assert!(!right("<think>a</think><think>b</think><answer>4</answer>"));
        assert!(!right("4"));
    }

    #[test]
    fn json_is_one_value() {
        let right = |text: &str| Format::Json.problem(text).is_none();
        assert!(right("{\"a\": [1, 2]}"));
        assert!(right("```json\n{\"a\": 1}\n```"));
        assert!(right("<think>x</think> 3"));
        assert!(!right("{\"a\": 1} {\"b\": 2}"));
        assert!(!right("{'a': 1}"));
        assert!(!right(""));
        assert!(!right(&"[".repeat(100_000)));
    }

    #[test]
    fn xml_has_one_root_and_matching_ends() {
        let right = |text: &str| Format::Xml.problem(text).is_none();
        assert!(right("<?xml version=\"1.0\"?>\n<a b=\"c\"><d/>text &amp; more</a>\n"));
        assert!(right("```xml\n<a/>\n```"));
        for wrong in
            ["<a></b>", "<a>", "<a/><b/>", "text <a/>", "", "text", "<a b=c/>", "<a b='1' b='2'></a>"]
        {
            assert!(!right(wrong), "{wrong}");
        }
    }

    #[test]
    fn pattern_matches_anywhere() {
        let format = Format::Regex(Regex::new("^Answer: \\d+$").unwrap());
        assert!(format.problem("Answer: 4").is_none());
        assert!(format.problem("Answer: four").is_some());
    }
}
