//! `length_constraints:*` of `IFEval`: how many words, sentences and paragraphs.

use super::arguments::Arguments;
use super::text::runs;

pub(super) fn sentences(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = super::sentences::sentences(text).len();
    arguments.compares("relation", num, arguments.number("num_sentences")?)
}

pub(super) fn words(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    arguments.compares("relation", runs(text).count(), arguments.number("num_words")?)
}

/// Parts with text between marks; `None` where one in the middle is blank.
pub(super) fn parts<'t>(text: &'t str, mark: &str) -> Option<Vec<&'t str>> {
    let parts: Vec<&str> = text.split(mark).map(str::trim).collect();
    let last = parts.len() - 1;
    let is_hole = |(at, part): (usize, &&str)| part.is_empty() && at != 0 && at != last;
    let has_hole = parts.iter().enumerate().any(is_hole);
    (!has_hole).then(|| parts.into_iter().filter(|part| !part.is_empty()).collect())
}

/// Paragraphs are separated by `***`.
pub(super) fn paragraphs(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let wanted = arguments.count("num_paragraphs")?;
    Ok(parts(text, "***").is_some_and(|parts| parts.len() == wanted))
}

/// So many paragraphs, separated by blank lines, of which the n-th begins with a word.
pub(super) fn nth_paragraph_first_word(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let (wanted, nth) = (arguments.count("num_paragraphs")?, arguments.count("nth_paragraph")?);
    let first_word = arguments.text("first_word")?.to_lowercase();
    let paragraphs: Vec<&str> = text.split("\n\n").map(str::trim).collect();
    let num = paragraphs.iter().filter(|paragraph| !paragraph.is_empty()).count();
    let Some(word) = nth
        .checked_sub(1)
        .filter(|_| nth <= num)
        .and_then(|at| paragraphs.get(at)?.split_whitespace().next())
    else {
        return Ok(false);
    };
    let word = word.trim_start_matches('\'').trim_start_matches('"');
    let word = word.split(['.', ',', '?', '!', '\'', '"']).next().unwrap_or_default();
    Ok(num == wanted && word.to_lowercase() == first_word)
}
