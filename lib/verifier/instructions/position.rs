//! `words:*` about places: which word stands first, last or at a number.

use super::arguments::Arguments;
use super::sentences::sentences;
use super::text::is_edge;
use super::tokens::tokens;

/// Words of a text, marks that stand alone left out.
fn word_tokens(text: &str) -> Vec<&str> {
    tokens(text).filter(|token| token.chars().any(char::is_alphanumeric)).collect()
}

/// The last word of each sentence is the first of the next.
pub(super) fn last_first(text: &str) -> bool {
    let fits = |pair: &[&str]| {
        let last = pair[0].trim_end_matches(is_edge).split_whitespace().next_back();
        let first = pair[1].trim_start_matches(is_edge).split_whitespace().next();
        last.zip(first).is_some_and(|(last, first)| last.to_lowercase() == first.to_lowercase())
    };
    sentences(text).windows(2).all(fits)
}

/// Each line ends with the word it begins with.
pub(super) fn paragraph_last_first(text: &str) -> bool {
    let lower = text.to_lowercase();
    let fits = |line: &str| {
        let words: Vec<&str> = line.trim().trim_matches(is_edge).split_whitespace().collect();
        words.first() == words.last()
    };
    lower.split('\n').all(fits)
}

/// The keyword is the m-th word of the n-th sentence.
pub(super) fn keyword_at(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let (n, m) = (arguments.count("n")?, arguments.count("m")?);
    let keyword = arguments.text("keyword")?.trim().to_lowercase();
    let sentence = n.checked_sub(1).and_then(|at| sentences(text).get(at).copied());
    let words = sentence.map(word_tokens).unwrap_or_default();
    Ok(m.checked_sub(1).and_then(|at| words.get(at)).is_some_and(|word| word.to_lowercase() == keyword))
}

/// The keyword is the second and the second to last word.
pub(super) fn second_and_second_last(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let keyword = arguments.text("keyword")?.trim().to_lowercase();
    let words = word_tokens(text);
    let is_keyword = |word: Option<&&str>| word.is_some_and(|word| word.to_lowercase() == keyword);
    Ok(is_keyword(words.get(1)) && is_keyword(words.iter().nth_back(1)))
}
