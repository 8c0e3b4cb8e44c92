//! The `gpqa` reward: the letter of a multiple-choice answer, or its text.
//!
//! The label is a letter, the number of a choice from 0, or its text; the metadata may have `choices` (a list, or an
//! object of letters), `correct_letter`, `valid_letters`, `correct_answer` and `answer_text`. The rules are those of
//! slime's `gpqa`, with three repairs: a letter may stand in brackets, it must stand alone, and texts are compared by
//! whole words.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use crate::answer::final_answer;
use crate::error::Result;
use crate::{Row, RowVerifier, Verdict};

/// Places of a letter, the surest first. Boundaries are those of ASCII words, which are found without stepping back in any
/// script; whether the letter stands alone is looked at afterwards.
const PATTERNS: [&str; 3] = [
    r"(?i)(?-u:\b)(?:answer|option|choice)(?-u:\b)\W*(?:is(?-u:\b)|:)?\W*(?-u:\b)([a-z])(?-u:\b)",
    r"(?i)(?-u:\b)([a-z])(?-u:\b)\W*is\s+(?:the\s+)?correct(?-u:\b)",
    r"(?i)(?-u:\b)final\s+(?:answer|option)(?-u:\b)\W*(?:is(?-u:\b)|:)?\W*(?-u:\b)([a-z])(?-u:\b)",
];
static RULES: LazyLock<Vec<Regex>> =
    LazyLock::new(|| PATTERNS.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect());

/// The `gpqa` reward.
#[derive(Debug)]
pub(crate) struct Choice;

/// Letters and digits in lower case, one blank between words, a blank around all.
fn plain(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |plain, word| plain + word + " ")
}

/// Whether a text has letters or digits.
fn says_something(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What a row says about its choices.
struct Question {
    letters: Vec<char>,
    choices: Vec<String>,
    correct: Option<char>,
    texts: Vec<String>,
}

impl Question {
    fn read(label: &str, metadata: &Map<String, Value>) -> Self {
        let choices: Vec<String> = match metadata.get("choices") {
            Some(Value::Array(list)) => list.iter().map(text_of).collect(),
            Some(Value::Object(object)) => object.values().map(text_of).collect(),
            _ => Vec::new(),
        };
        let given: Vec<char> = match metadata.get("valid_letters") {
            Some(Value::Array(list)) => {
                list.iter().filter_map(|letter| letter.as_str()?.chars().next()).collect()
            }
            Some(Value::String(letters)) => letters.chars().filter(char::is_ascii_alphabetic).collect(),
            _ => Vec::new(),
        };
        let num = if choices.is_empty() { 10 } else { choices.len() };
        let letters: Vec<char> = if given.is_empty() {
            ('A'..='Z').take(num).collect()
        } else {
            given.iter().map(char::to_ascii_uppercase).collect()
        };
        let label = label.trim();
        let told = metadata.get("correct_letter").and_then(Value::as_str);
        let single = |text: &str| {
            let mut all = text.trim().chars();
            all.next().filter(|_| all.next().is_none()).map(|letter| letter.to_ascii_uppercase())
        };
        let by_letter =
            told.and_then(single).or_else(|| single(label).filter(|letter| letters.contains(letter)));
        let by_number = label.parse::<usize>().ok().and_then(|at| letters.get(at).copied());
        let same =
            |choice: &String| choice == label || says_something(label) && plain(choice) == plain(label);
        let by_text = choices.iter().position(same).and_then(|at| letters.get(at).copied());
        let correct = by_number.or(by_letter).or(by_text);
        let place = correct.and_then(|letter| letters.iter().position(|known| *known == letter));
        let mut texts: Vec<String> = place.and_then(|at| choices.get(at).cloned()).into_iter().collect();
        texts.extend(
            ["correct_answer", "answer_text"].iter().filter_map(|key| metadata.get(*key)).map(text_of),
        );
        texts.push(label.to_owned());
        Self { letters, choices, correct, texts }
    }

    /// The letter a response gives.
    fn letter(&self, answer: &str) -> Option<char> {
        let valid =
            |letter: char| Some(letter.to_ascii_uppercase()).filter(|letter| self.letters.contains(letter));
        let by_rule = RULES.iter().find_map(|rule| {
            let place = rule.captures(answer)?.get(1)?;
            let found = place.as_str().chars().next()?;
            let before = answer[..place.start()].chars().next_back();
            let after = answer[place.end()..].chars().next();
            if [before, after].into_iter().flatten().any(char::is_alphanumeric) {
                return None;
            }
            // "answer is a city" speaks of no letter.
            let is_article = found == 'a' && self.choices.len() != 1;
            valid(found).filter(|_| !is_article)
        });
        by_rule.or_else(|| {
            let single = |word: &str| match word.as_bytes() {
                [letter] if letter.is_ascii_uppercase() => Some(char::from(*letter)),
                _ => None,
            };
            let mut letters = answer.rsplit(|letter: char| !letter.is_alphanumeric()).filter_map(single);
            letters.find(|letter| self.letters.contains(letter))
        })
    }
}

impl RowVerifier for Choice {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let question = Question::read(row.expected(), &row.metadata_object().unwrap_or_default());
        let answer = final_answer(row.response);
        let letter = question.letter(answer);
        if let (Some(letter), Some(correct)) = (letter, question.correct) {
            let reason = format!("the letter is {letter}, the right one {correct}");
            return Ok(Verdict::of(letter == correct, reason).about(letter.to_string()));
        }
        let said = plain(answer);
        let text = question.texts.iter().find(|text| says_something(text) && said.contains(&plain(text)));
        Ok(match text {
            Some(text) => Verdict::of(true, format!("it says {text:?}")).about(text.as_str()),
            None => Verdict::of(false, "neither a letter nor the text of the right choice"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reward(response: &str, label: &str, metadata: &Value) -> f64 {
        let metadata = metadata.to_string();
        let row = Row { response, label: Some(label), metadata: Some(&metadata), ..Row::default() };
        Choice.verdict(&row).unwrap().reward
    }

    #[test]
    fn verdicts_are_those_of_the_reference() {
        let four = json!({"choices": ["Rome", "Berlin", "Paris", "Oslo"]});
        let signs = json!({"choices": ["北京", "东京"]});
        let cities = json!({"choices": ["Rome", "capital of France"]});
        for (response, label, metadata, expected) in [
            ("The answer is C.", "C", json!({}), 1.0),
            ("The answer is C.", "D", json!({}), 0.0),
            ("我选 东京。", "东京", signs.clone(), 1.0),
            ("我选 北京。", "东京", signs.clone(), 0.0),
            ("B", "东京", signs, 1.0),
            ("Answer: C", "2", four.clone(), 1.0),
            ("Answer: B", "1", json!({"choices": {"A": "x", "B": "y"}}), 1.0),
            ("I think the answer is B.", "capital of france", cities, 1.0),
            ("Definitely paris.", "Paris", four, 1.0),
            ("Answer: A", "anything", json!({"correct_letter": "a"}), 1.0),
            ("", "A", json!({}), 0.0),
            ("random text", "some answer", json!({}), 0.0),
            ("My answer B", "B", json!({"correct_letter": "C"}), 0.0),
            ("Answer: K", "10", json!({}), 0.0),
            ("b", "B", json!({}), 1.0),
        ] {
            assert!((reward(response, label, &metadata) - expected).abs() < 1e-9, "{response} {label}");
        }
    }

    #[test]
    fn letters_stand_alone_and_may_stand_in_brackets() {
        assert!(reward("The correct option is (B)", "B", &json!({})) > 0.5);
        assert!(reward("The answer is **(B)**", "B", &json!({})) > 0.5);
        assert!(reward("Answer: Z", "A", &json!({})) < 0.5);
        assert!(reward("Answer is apple", "A", &json!({})) < 0.5);
    }

    #[test]
    fn letters_are_found_where_the_reference_finds_them() {
        let question = Question::read("A", &Map::new());
        for (response, expected) in [
            ("My choice is D", Some('D')),
            ("A is correct here", Some('A')),
            ("E is the correct option", Some('E')),
            ("Final answer: B", Some('B')),
            ("the final option is C", Some('C')),
            ("we ruled out A, then B, settled on C", Some('C')),
            ("the answer is bébé", None),
            ("no idea, sorry", None),
        ] {
            assert_eq!(question.letter(response), expected, "{response}");
        }
        let two = Question::read("A", json!({"valid_letters": ["a", "b"]}).as_object().unwrap());
        assert_eq!(two.letter("Answer: C, but actually A was right, no wait B."), Some('B'));
    }
}
