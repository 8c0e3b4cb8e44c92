//! Numbers in English words: `three`, `twenty-one`, `two hundred and five`, `two thirds`, `one and a half`.

use std::borrow::Cow;

/// The words of a number that is written out here are fewer.
const MAX_WORDS: usize = 16;

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const THOUSANDS: [(&str, u64); 3] = [("billion", 1_000_000_000), ("million", 1_000_000), ("thousand", 1000)];

/// Parts of one, and how many of them it has.
const PARTS: [(&str, &str, u64); 12] = [
    ("half", "halves", 2),
    ("third", "thirds", 3),
    ("quarter", "quarters", 4),
    ("fourth", "fourths", 4),
    ("fifth", "fifths", 5),
    ("sixth", "sixths", 6),
    ("seventh", "sevenths", 7),
    ("eighth", "eighths", 8),
    ("ninth", "ninths", 9),
    ("tenth", "tenths", 10),
    ("eleventh", "elevenths", 11),
    ("twelfth", "twelfths", 12),
];

/// The digits of an answer that is the words of a number as a whole.
pub(crate) fn digits<'a>(text: &str) -> Option<Cow<'a, str>> {
    let bare = text.trim().strip_prefix("\\text{").and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    if !bare.trim_start().starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let lower = bare.trim().trim_end_matches('.').to_ascii_lowercase();
    let words: Vec<&str> = lower.split([' ', '-']).take(MAX_WORDS + 1).collect();
    let is_short = words.len() <= MAX_WORDS;
    if !is_short {
        return None;
    }
    number(&words).map(|number| number.to_string()).or_else(|| fraction(&words)).map(Cow::Owned)
}

/// `two thirds` as `2/3`, `one and a half` as `3/2`.
fn fraction(words: &[&str]) -> Option<String> {
    if words == ["half"] {
        return Some("1/2".to_owned());
    }
    let (last, before) = words.split_last()?;
    let (_, _, below) = PARTS.iter().find(|(part, parts, _)| last == part || last == parts)?;
    let and = before.iter().rposition(|word| *word == "and");
    let (whole, above) = match and {
        Some(at) => (number(before.get(..at)?)?, before.get(at + 1..)?),
        None => (0, before),
    };
    let above = if above == ["a"] { 1 } else { number(above)? };
    let is_one = PARTS.iter().any(|(part, ..)| part == last);
    if is_one != (above == 1) || and.is_some() && above >= *below {
        return None;
    }
    let above = whole.checked_mul(*below)?.checked_add(above)?;
    Some(format!("{above}/{below}"))
}

/// The number of words, the largest part first: each of billions, millions, thousands, hundreds at most once.
fn number(words: &[&str]) -> Option<u64> {
    for (name, size) in THOUSANDS {
        if let Some(at) = words.iter().position(|word| *word == name) {
            let rest = words.get(at + 1..)?;
            let below = if rest.is_empty() { 0 } else { number(rest)? };
            return (below < size).then_some(hundreds(words.get(..at)?)? * size + below);
        }
    }
    hundreds(words)
}

fn hundreds(words: &[&str]) -> Option<u64> {
    match words {
        [one, "hundred"] => Some(ones(one)? * 100),
        [one, "hundred", "and", rest @ ..] | [one, "hundred", rest @ ..] => {
            Some(ones(one)? * 100 + tens(rest)?)
        }
        rest => tens(rest),
    }
}

fn tens(words: &[&str]) -> Option<u64> {
    let ten = |word: &str| TENS.iter().position(|known| *known == word).map(|at| at as u64 * 10 + 20);
    match words {
        [word] => ten(word).or_else(|| ONES.iter().position(|known| known == word).map(|at| at as u64)),
        [first, one] => Some(ten(first)? + ones(one)?),
        _ => None,
    }
}

/// One to nine.
fn ones(word: &str) -> Option<u64> {
    let at = ONES.iter().position(|known| *known == word)? as u64;
    (1..10).contains(&at).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_number_are_its_digits() {
        for (text, expected) in [
            ("three", "3"),
            ("Twenty-one", "21"),
            ("\\text{twelve}", "12"),
            ("two hundred and five", "205"),
            ("one thousand two hundred thirty-four", "1234"),
            ("five million.", "5000000"),
            ("one half", "1/2"),
            ("a half", "1/2"),
            ("One-half", "1/2"),
            ("\\text{three quarters}", "3/4"),
            ("five twelfths", "5/12"),
            ("one and a half", "3/2"),
            ("two and three-quarters", "11/4"),
        ] {
            assert_eq!(digits(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "one two",
            "hundred",
            "one of them",
            "thousand",
            "one thousand two million",
            "twenty-twenty",
            "none",
            "third",
            "one thirds",
            "two half",
            "one and five quarters",
            "half of it",
            "half past two",
        ] {
            assert_eq!(digits(text), None, "{text}");
        }
    }
}
