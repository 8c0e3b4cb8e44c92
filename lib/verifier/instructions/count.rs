//! `count:*`: how many words, names, numbers or marks a response has.

use std::collections::HashSet;

use regex::RegexBuilder;

use super::arguments::Arguments;
use super::text::{is_edge, runs, without_punctuation};
use super::tokens::tokens;

/// The names that `count:person_names` lists in its instruction.
const NAMES: &str = "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia \
    Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan \
    Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan \
    Stella Jonathan";
/// English pronouns: personal, possessive, reflexive, demonstrative, interrogative, relative, indefinite.
const PRONOUNS: &str = "i me we us you he him she her it they them my mine our ours your yours his hers its their theirs \
    myself ourselves yourself yourselves himself herself itself themselves this that these those who whom whose which \
    what whoever whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing \
    somebody someone something each either neither both all some any none";

pub(super) fn word_range(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let num = runs(text).count() as f64;
    Ok((arguments.number("min_words")?..=arguments.number("max_words")?).contains(&num))
}

pub(super) fn unique_words(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let lower = text.to_lowercase();
    let words: HashSet<&str> = lower.split_whitespace().map(|word| word.trim_matches(is_edge)).collect();
    Ok(words.len() as f64 >= arguments.number("N")?)
}

/// Spellings count apart: `And` and `and,` are two.
pub(super) fn conjunctions(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let is_conjunction = |word: &&str| {
        let word = word.trim_matches(is_edge).to_lowercase();
        ["and", "but", "for", "nor", "or", "so", "yet"].contains(&word.as_str())
    };
    let found: HashSet<&str> = text.split_whitespace().filter(is_conjunction).collect();
    Ok(found.len() as f64 >= arguments.number("small_n")?)
}

pub(super) fn person_names(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let words: HashSet<&str> = runs(text).collect();
    let num = NAMES.split_whitespace().filter(|name| words.contains(name)).count();
    Ok(num as f64 >= arguments.number("N")?)
}

/// `3.5` and `1,000` are one number each.
pub(super) fn numbers(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let bare = without_punctuation(text);
    let num = bare.split(|letter: char| !letter.is_numeric()).filter(|run| !run.is_empty()).count();
    Ok((num as f64 - arguments.number("N")?).abs() < 0.5)
}

/// All of `. , ! ? ; :`, and an interrobang besides.
pub(super) fn punctuation(text: &str) -> bool {
    let without = if text.contains("?!") { text.replacen("?!", "", 1) } else { text.replacen("!?", "", 1) };
    let has_interrobang = without.len() < text.len() || text.contains('‽');
    has_interrobang && ".,!?;:".chars().all(|mark| without.contains(mark))
}

pub(super) fn pronouns(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let known: HashSet<&str> = PRONOUNS.split_whitespace().collect();
    let text = text.replace('/', " ").to_lowercase();
    let is_word = |token: &&str| token.starts_with(|letter: char| letter.is_ascii_lowercase());
    let num = tokens(&text).filter(is_word).filter(|word| known.contains(word)).count();
    Ok(num as f64 >= arguments.number("N")?)
}

/// Five keywords once, twice, three, five and seven times, as whole words.
pub(super) fn keywords(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    for (key, wanted) in [("keyword1", 1), ("keyword2", 2), ("keyword3", 3), ("keyword4", 5), ("keyword5", 7)]
    {
        if num_words(arguments.text(key)?.trim(), text)? != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How often a word stands in a text, upper or lower case.
pub(super) fn num_words(word: &str, text: &str) -> Result<usize, String> {
    let pattern = format!(r"\b{}\b", regex::escape(word));
    let pattern =
        RegexBuilder::new(&pattern).case_insensitive(true).build().map_err(|error| error.to_string())?;
    Ok(pattern.find_iter(text).count())
}

/// Every Nth word has a Japanese letter, numbers apart.
pub(super) fn japanese(arguments: &Arguments<'_>, text: &str) -> Result<bool, String> {
    let every = arguments.count("N")?.max(1);
    let is_japanese = |letter: char| matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{4e00}'..='\u{9fff}');
    let nth = text.split_whitespace().enumerate().filter(|(at, _)| (at + 1) % every == 0);
    let mut words = nth.map(|(_, word)| word.trim_matches(is_edge));
    Ok(words.all(|word| word.chars().all(char::is_numeric) || word.chars().any(is_japanese)))
}
