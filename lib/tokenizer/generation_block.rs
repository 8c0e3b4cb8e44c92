//! Hugging Face's `{% generation %}` blocks, which mark what the assistant says: Jinja that leaves a character at both
//! ends of each, and the places of these characters in what was rendered.

use std::ops::Range;

use serde_json::Value;

use crate::{Error, Result};

/// The variables that stand at the beginning and the end of a block, and the characters they are rendered as when the
/// places are wanted; else they are not defined and render as nothing. Unicode keeps both characters out of texts
/// ("noncharacters").
pub(crate) const MARKS: [(&str, char); 2] =
    [("slime_begin_mark", '\u{fdd0}'), ("slime_end_mark", '\u{fdd1}')];

/// The template in plain Jinja. White-space control of both tags stays as it is, and as in Hugging Face's block a name
/// that is set inside is not known behind it.
pub(crate) fn translate(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        text.push_str(before);
        let Some(len) = tag.find("%}").map(|end| end + 2) else { break };
        let (tag, after) = tag.split_at(len);
        let [begin, end] = MARKS.map(|(name, _)| name);
        match parts(tag) {
            Some((open, "generation", close)) => {
                text.extend([open, " with %}{{ ", begin, " }}{% if true ", close]);
            }
            Some((open, "endgeneration", close)) => {
                text.extend([open, " endif %}{{ ", end, " }}{% endwith ", close]);
            }
            _ => text.push_str(tag),
        }
        rest = after;
    }
    text + rest
}

/// A tag as its opening, the word in it and its closing; openings and closings carry white-space control.
fn parts(tag: &str) -> Option<(&str, &str, &str)> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let opening = 2 + usize::from(inside.starts_with(['-', '+']));
    let inside = &tag[opening..tag.len() - 2];
    let closing = 2 + usize::from(inside.ends_with(['-', '+']));
    let word = tag.get(opening..tag.len() - closing)?.trim();
    Some((&tag[..opening], word, &tag[tag.len() - closing..]))
}

/// A message with one of the marks in it could claim to be said by the assistant.
pub(crate) fn refuse_marks(messages: &[Value], tools: Option<&Value>) -> Result<()> {
    match messages.iter().chain(tools).find_map(mark_in) {
        Some(mark) => Err(Error::Mark { code: mark.into() }),
        None => Ok(()),
    }
}

fn mark_in(value: &Value) -> Option<char> {
    let in_text = |text: &str| MARKS.map(|(_, mark)| mark).into_iter().find(|mark| text.contains(*mark));
    match value {
        Value::String(text) => in_text(text),
        Value::Array(values) => values.iter().find_map(mark_in),
        Value::Object(fields) => {
            fields.iter().find_map(|(key, value)| in_text(key).or_else(|| mark_in(value)))
        }
        _ => None,
    }
}

/// The text without its marks, and what they enclose.
pub(crate) fn take_marks(marked: &str) -> Result<(String, Vec<Range<usize>>)> {
    let [begin, end] = MARKS.map(|(_, mark)| mark);
    let mut text = String::with_capacity(marked.len());
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut opened = None;
    for part in marked.split_inclusive([begin, end]) {
        let words = part.trim_end_matches([begin, end]);
        text.push_str(words);
        match (part[words.len()..].chars().next(), opened) {
            (None, _) => {}
            (Some(mark), None) if mark == begin => opened = Some(text.len()),
            (Some(mark), Some(start)) if mark == end => {
                spans.push(start..text.len());
                opened = None;
            }
            _ => return Err(Error::ChatTemplate { reason: "a generation block inside another".to_owned() }),
        }
    }
    Ok((text, spans))
}
