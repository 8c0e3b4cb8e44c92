//! `ratio:*`: shares of words and kinds of sentences.

use std::collections::HashSet;

use super::arguments::Arguments;
use super::sentences::sentences;
use super::text::{bare_words, num_stop_words, runs};

pub(super) fn stop_words(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num_words = runs(text).count();
    let percentage = num_stop_words(text) as f64 / num_words as f64 * 100.0;
    Ok(num_words > 0 && percentage <= arguments.number("percentage")?)
}

/// Sentences that end in `.`, in `?` and in `!`.
fn num_endings(text: &str) -> [usize; 3] {
    let sentences = sentences(text);
    ['.', '?', '!'].map(|mark| sentences.iter().filter(|sentence| sentence.ends_with(mark)).count())
}

pub(super) fn sentence_type(text: &str) -> bool {
    let [statements, questions, _] = num_endings(text);
    statements == 2 * questions
}

pub(super) fn sentence_balance(text: &str) -> bool {
    let [statements, questions, exclamations] = num_endings(text);
    statements == questions && questions == exclamations
}

/// Three sentences of as many characters, no word twice.
pub(super) fn sentence_words(text: &str) -> bool {
    let sentences = sentences(text);
    if sentences.len() != 3 {
        return false;
    }
    let lens: HashSet<usize> = sentences.iter().map(|sentence| sentence.chars().count()).collect();
    let words = bare_words(&sentences.join(" "));
    let unique: HashSet<&String> = words.iter().collect();
    lens.len() == 1 && unique.len() == words.len()
}

/// The share of the response's runs of three characters that the reference has, within 2 percent. The instruction
/// speaks of trigrams; the published verdicts are about characters.
pub(super) fn overlap(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let own: Vec<char> = text.chars().collect();
    let reference: Vec<char> = arguments.text("reference_text")?.chars().collect();
    let own: HashSet<&[char]> = own.windows(3).collect();
    let reference: HashSet<&[char]> = reference.windows(3).collect();
    let percentage = own.intersection(&reference).count() as f64 / own.len() as f64 * 100.0;
    let wanted = arguments.number("percentage")?;
    Ok(!own.is_empty() && (wanted - 2.0..=wanted + 2.0).contains(&percentage))
}
