//! Sentences of an English text, cut where the Punkt tokenizer of the Natural Language Toolkit cuts: behind `.`, `?`
//! or `!` (and closing quotes or brackets) before a blank, but not behind abbreviations and initials.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Abbreviations behind which a sentence goes on.
const ABBREVIATIONS: &str = "mr mrs ms dr prof rev gen col capt lt sgt maj adm gov sen rep pres hon st jr sr inc ltd corp \
    co bros vs e.g i.e a.m p.m u.s u.k u.n d.c ph.d m.d b.a m.a no vol fig sec dept univ jan feb aug sept oct nov dec \
    mt ft ave blvd al cf approx est messrs";

static KNOWN: LazyLock<HashSet<&'static str>> = LazyLock::new(|| ABBREVIATIONS.split_whitespace().collect());
/// Bytes of the longest abbreviation.
const MAX_KNOWN_BYTES: usize = 6;

/// The sentences of a text, without blanks around them.
pub(super) fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(offset) = text.get(at..).and_then(|rest| rest.find(['.', '?', '!'])) {
        let first = at + offset;
        let mut end = first;
        while bytes.get(end).is_some_and(|byte| b".?!".contains(byte)) {
            end += 1;
        }
        let marks = &text[first..end];
        let closed = end + closers(&text[end..]);
        at = closed.max(end);
        let follows = &text[at..];
        let is_cut = follows.is_empty() || follows.starts_with(char::is_whitespace);
        if is_cut && ends_sentence(&text[start..first], marks, follows.trim_start()) {
            push(&mut found, &text[start..at]);
            start = at;
        }
    }
    push(&mut found, &text[start..]);
    found
}

fn push<'a>(found: &mut Vec<&'a str>, sentence: &'a str) {
    let sentence = sentence.trim();
    if !sentence.is_empty() {
        found.push(sentence);
    }
}

/// Bytes of closing quotes and brackets at the beginning.
fn closers(text: &str) -> usize {
    text.len() - text.trim_start_matches(['"', '\'', ')', ']', '}', '”', '’', '*']).len()
}

fn ends_sentence(before: &str, marks: &str, next: &str) -> bool {
    if marks.ends_with(['?', '!']) {
        return true;
    }
    let goes_on = next.starts_with(char::is_lowercase);
    if marks.len() > 1 {
        return !goes_on;
    }
    let word = before
        .rsplit(|letter: char| letter.is_whitespace() || "([\"'“‘".contains(letter))
        .next()
        .unwrap_or_default();
    let mut letters = word.chars();
    let is_initial =
        letters.next().is_some_and(char::is_uppercase) && letters.next().is_none() && word != "I";
    !(is_initial || is_abbreviation(word)) || next.is_empty()
}

fn is_abbreviation(word: &str) -> bool {
    let mut lower = [0; MAX_KNOWN_BYTES];
    let Some(lower) = lower.get_mut(..word.len()) else { return false };
    lower.copy_from_slice(word.as_bytes());
    lower.make_ascii_lowercase();
    std::str::from_utf8(lower).is_ok_and(|lower| KNOWN.contains(lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_abbreviation_is_longer_than_the_longest() {
        assert_eq!(KNOWN.iter().map(|known| known.len()).max(), Some(MAX_KNOWN_BYTES));
    }

    #[test]
    fn sentences_end_at_marks_before_blanks() {
        assert_eq!(sentences("One. Two? \"Three!\" Four"), ["One.", "Two?", "\"Three!\"", "Four"]);
        assert_eq!(
            sentences("Dr. Who paid 3.50 to J. Smith. Really?!"),
            ["Dr. Who paid 3.50 to J. Smith.", "Really?!"]
        );
        assert_eq!(sentences("Well... maybe. No... Yes."), ["Well... maybe.", "No...", "Yes."]);
        assert_eq!(sentences("1. Do this."), ["1.", "Do this."]);
        assert_eq!(sentences("  "), Vec::<&str>::new());
    }
}
