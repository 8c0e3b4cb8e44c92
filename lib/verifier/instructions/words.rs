//! `words:*`: what every word of a response must be like.

use std::collections::{HashMap, HashSet};

use super::arguments::Arguments;
use super::syllables::syllables;
use super::text::{bare_words, is_edge, without_punctuation};
use super::tokens::tokens;
use super::verbs::is_verb;

/// Each word begins with the letter after that of the word before; after `z` comes `a`.
pub(super) fn alphabet(text: &str) -> bool {
    let bare = without_punctuation(text);
    let firsts: Option<Vec<u8>> = bare
        .split_whitespace()
        .map(|word| word.bytes().next().map(|byte| byte.to_ascii_lowercase()).filter(u8::is_ascii_lowercase))
        .collect();
    let follows = |pair: &[u8]| (pair[0] - b'a' + 1) % 26 == pair[1] - b'a';
    firsts.is_some_and(|firsts| !firsts.is_empty() && firsts.windows(2).all(follows))
}

/// One paragraph with at most three kinds of vowels.
pub(super) fn vowels(text: &str) -> bool {
    let found: HashSet<char> =
        text.to_lowercase().chars().filter(|letter| "aeiou".contains(*letter)).collect();
    !text.trim().contains('\n') && found.len() <= 3
}

/// Two consonants side by side in every word.
pub(super) fn consonants(text: &str) -> bool {
    let is_consonant = |byte: u8| byte.is_ascii_lowercase() && !b"aeiou".contains(&byte);
    let has_cluster =
        |word: &str| word.as_bytes().windows(2).any(|pair| pair.iter().all(|byte| is_consonant(*byte)));
    text.to_lowercase().split_whitespace().all(has_cluster)
}

/// At least ten palindromes of five letters or more.
pub(super) fn palindromes(text: &str) -> bool {
    let is_palindrome = |word: &&String| word.chars().count() >= 5 && word.chars().eq(word.chars().rev());
    bare_words(text).iter().filter(is_palindrome).count() >= 10
}

/// Every word has a prime number of characters, below 100.
pub(super) fn prime_lengths(text: &str) -> bool {
    let is_prime =
        |num: usize| (2..100).contains(&num) && (2..num).all(|divisor: usize| !num.is_multiple_of(divisor));
    without_punctuation(text).split_whitespace().all(|word| is_prime(word.chars().count()))
}

pub(super) fn repeats(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let limit = arguments.number("small_n")?;
    let mut counts: HashMap<String, usize> = HashMap::new();
    for word in bare_words(text) {
        *counts.entry(word).or_default() += 1;
    }
    Ok(counts.values().all(|num| *num as f64 <= limit))
}

/// Neighbours begin with different letters.
pub(super) fn no_consecutive(text: &str) -> bool {
    let words = bare_words(text);
    words.windows(2).all(|pair| pair[0].chars().next() != pair[1].chars().next())
}

pub(super) fn odd_even_syllables(text: &str) -> bool {
    let parities: Vec<usize> = bare_words(text).iter().map(|word| syllables(word) % 2).collect();
    parities.windows(2).all(|pair| pair[0] != pair[1])
}

pub(super) fn start_verb(text: &str) -> bool {
    let mut tokens = tokens(text);
    let first = tokens.next();
    let second = tokens.next().map_or("", |word| word.trim_matches(is_edge));
    first.is_some_and(|first| is_verb(first, second))
}
