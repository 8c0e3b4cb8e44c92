//! `sentence:*`: what each sentence must have.

use super::arguments::Arguments;
use super::count::num_words;
use super::sentences::sentences;
use super::text::{is_edge, without_punctuation};

/// The word stands in the N-th sentence.
pub(super) fn keyword(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let (at, word) = (arguments.count("N")?.saturating_sub(1), arguments.text("word")?);
    sentences(text).get(at).map_or(Ok(false), |sentence| Ok(num_words(word, sentence)? > 0))
}

/// Each sentence has exactly so many words more than the one before.
pub(super) fn increment(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let step = arguments.number("small_n")?;
    let lens: Vec<usize> = sentences(text)
        .iter()
        .map(|sentence| without_punctuation(sentence).split_whitespace().count())
        .collect();
    Ok(!lens.is_empty() && lens.windows(2).all(|pair| (pair[1] as f64 - pair[0] as f64 - step).abs() < 0.5))
}

/// Each sentence has more words that alliterate with a neighbour than the one before.
pub(super) fn alliteration(text: &str) -> bool {
    let nums: Vec<usize> = sentences(text).iter().map(|sentence| num_alliterative(sentence)).collect();
    nums.windows(2).all(|pair| pair[0] < pair[1])
}

fn num_alliterative(sentence: &str) -> usize {
    let lower = sentence.to_lowercase();
    let words = lower.split_whitespace().map(|word| word.trim_start_matches(is_edge));
    let firsts: Vec<char> = words.filter_map(|word| word.chars().next()).collect();
    let pairs: Vec<bool> = firsts.windows(2).map(|pair| pair[0] == pair[1]).collect();
    // The first pair of a run brings two words, each later one another.
    let runs = pairs.iter().enumerate().filter(|(at, same)| {
        **same && at.checked_sub(1).and_then(|before| pairs.get(before)).is_none_or(|before| !before)
    });
    pairs.iter().filter(|same| **same).count() + runs.count()
}
