//! The `f1` and `exact_match` rewards of question answering: the answer and the label as bags of words.
//!
//! The normalisation is that of `SQuAD` and `HotpotQA`: lower case, no ASCII punctuation, no articles. A label that is a
//! JSON list of texts has several right answers, of which the best counts.

use std::collections::HashMap;

use crate::answer::final_answer;
use crate::error::Result;
use crate::{Row, RowVerifier, Verdict};

/// A text in lower case without punctuation.
fn bare(text: &str) -> String {
    let mut bare = text.to_lowercase();
    bare.retain(|letter| !letter.is_ascii_punctuation());
    bare
}

/// Words without articles.
fn words(bare: &str) -> Vec<&str> {
    bare.split_whitespace().filter(|word| !["a", "an", "the"].contains(word)).collect()
}

/// The right answers of a label.
pub(crate) fn alternatives(label: &str) -> Vec<String> {
    match serde_json::from_str::<Vec<String>>(label) {
        Ok(list) if !list.is_empty() => list,
        _ => vec![label.to_owned()],
    }
}

/// F1 of the words of two texts; `yes`, `no` and `noanswer` match themselves only.
fn f1(answer: &[&str], truth: &[&str]) -> f64 {
    let is_closed = |words: &[&str]| matches!(words, [word] if ["yes", "no", "noanswer"].contains(word));
    if (is_closed(answer) || is_closed(truth)) && answer != truth {
        return 0.0;
    }
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in truth {
        *left.entry(word).or_default() += 1;
    }
    let mut shared = 0;
    for word in answer {
        if let Some(num) = left.get_mut(word).filter(|num| **num > 0) {
            *num -= 1;
            shared += 1;
        }
    }
    if shared == 0 {
        return 0.0;
    }
    let (precision, recall) =
        (f64::from(shared) / answer.len() as f64, f64::from(shared) / truth.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

/// The `f1` reward.
#[derive(Debug)]
pub(crate) struct F1;

impl RowVerifier for F1 {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let answer = bare(final_answer(row.response));
        let answer = words(&answer);
        let scored =
            alternatives(row.expected()).into_iter().map(|truth| (f1(&answer, &words(&bare(&truth))), truth));
        let best = scored.max_by(|left, right| left.0.total_cmp(&right.0));
        let (reward, truth) = best.unwrap_or_default();
        Ok(Verdict::new(reward, format!("F1 of its words with {truth:?}")).about(answer.join(" ")))
    }
}

/// The `exact_match` reward.
#[derive(Debug)]
pub(crate) struct ExactMatch;

impl RowVerifier for ExactMatch {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let answer = bare(final_answer(row.response));
        let answer = words(&answer);
        let is_right = alternatives(row.expected()).iter().any(|truth| words(&bare(truth)) == answer);
        let verb = if is_right { "are" } else { "are not" };
        Ok(Verdict::of(is_right, format!("its words {verb} those of the label")).about(answer.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(verifier: &dyn RowVerifier, response: &str, label: &str) -> f64 {
        verifier.verdict(&Row { response, label: Some(label), ..Row::default() }).unwrap().reward
    }

    #[test]
    fn f1_is_that_of_the_reference() {
        for (response, label, expected) in [
            ("Paris is the capital", "Paris is the capital", 1.0),
            ("the brown fox", "a quick brown fox", 0.8),
            ("apple banana", "carrot date", 0.0),
            ("yes", "a phrase", 0.0),
            ("a phrase", "noanswer", 0.0),
            ("yes", "yes", 1.0),
            ("Yes it is", "yes", 0.0),
            ("cat sat", "cat", 2.0 / 3.0),
            ("a", "the", 0.0),
            ("<think>no</think>cat", "[\"dog\", \"cat\"]", 1.0),
        ] {
            let got = reward(&F1, response, label);
            assert!((got - expected).abs() < 1e-9, "{response} {label}: {got}");
        }
    }

    #[test]
    fn words_are_normalised_as_in_the_reference() {
        for (text, expected) in [
            ("The Quick Brown Fox.", "quick brown fox"),
            ("An apple, a day", "apple day"),
            ("HELLO   WORLD", "hello world"),
            ("a.b,c!", "abc"),
            ("the", ""),
        ] {
            assert_eq!(words(&bare(text)).join(" "), expected);
        }
        assert!(reward(&ExactMatch, "The Eiffel Tower!", "eiffel tower") > 0.5);
        assert!(reward(&ExactMatch, "Eiffel's tower", "eiffel tower") < 0.5);
    }
}
