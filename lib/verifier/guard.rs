//! `guard:TYPE`: what earns a reward without an answer earns another one, 0 unless told otherwise.
//!
//! A response is caught that (`boxes`) gives several different boxes and so may let the last or any be right,
//! (`candidates`) names several of the question's choices where it answers, (`echo`) says the prompt again in place of
//! an answer, or (`think`) has a thought of fewer characters.

use std::collections::HashSet;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::answer::{answer_text, innermost_boxed, last_boxed};
use crate::error::Result;
use crate::nested::inner;
use crate::options::Options;
use crate::spec::Spec;
use crate::{Row, Verdict, Verifier};

/// An answer of fewer words is no echo: it may well be words of the prompt.
const MIN_ECHO_WORDS: usize = 12;
/// Words of the runs by which an echo is told.
const ECHO_RUN: usize = 4;

/// The guard around a type.
pub(crate) struct Guard {
    inner: Spec,
    max_boxes: usize,
    max_candidates: usize,
    max_echo: f64,
    min_think: usize,
    value: f64,
}

impl Guard {
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        Ok(Self {
            inner: inner(options)?,
            max_boxes: options.count("boxes", 1)?,
            max_candidates: options.count("candidates", 1)?,
            max_echo: options.number("echo", 0.8)?,
            min_think: options.count("think", 1)?,
            value: options.number("value", 0.0)?,
        })
    }

    /// What the response is caught at.
    fn caught(&self, row: &Row<'_>) -> Option<String> {
        let answer = answer_text(row.response);
        if let Some(len) = thought_len(row.response).filter(|len| *len < self.min_think) {
            return Some(format!("a thought of {len} characters, at least {} expected", self.min_think));
        }
        let boxes: HashSet<String> =
            innermost_boxed(answer).into_iter().map(|content| content.split_whitespace().collect()).collect();
        if boxes.len() > self.max_boxes {
            return Some(format!("{} different boxes, at most {} expected", boxes.len(), self.max_boxes));
        }
        let prompt = row.prompt.map(prompt_text).unwrap_or_default();
        let place = last_boxed(answer).or_else(|| answer.trim().lines().next_back()).unwrap_or_default();
        let candidates = candidates(row, &prompt);
        let num = num_named(place, &candidates).max(num_letters(place, candidates.len()));
        if num > self.max_candidates {
            return Some(format!("{num} of the choices named, at most {} expected", self.max_candidates));
        }
        let echo = echo_share(answer, &prompt);
        (echo > self.max_echo).then(|| format!("{:.0} % of the answer is the prompt's", echo * 100.0))
    }
}

impl Verifier for Guard {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let guarded = |(row, verdict): (&Row<'_>, Result<Verdict>)| {
            let verdict = verdict?;
            Ok(match self.caught(row) {
                None => verdict,
                Some(what) => {
                    Verdict { answer: verdict.answer, ..Verdict::new(self.value, format!("caught: {what}")) }
                }
            })
        };
        rows.iter().zip(self.inner.score(rows)).map(guarded).collect()
    }

    fn inner(&self) -> Option<&Spec> {
        Some(&self.inner)
    }
}

/// Characters of the thought, blanks apart; `None` without one.
fn thought_len(response: &str) -> Option<usize> {
    let close = response.rfind("</think>")?;
    let thought = &response[..close];
    let thought = thought.rsplit_once("<think>").map_or(thought, |(_, inner)| inner);
    Some(thought.chars().filter(|letter| !letter.is_whitespace()).count())
}

/// The text of a prompt: that of its messages, or what it is.
pub(crate) fn prompt_text(prompt: &str) -> String {
    match serde_json::from_str(prompt) {
        Ok(Value::String(text)) => text,
        Ok(Value::Array(messages)) => {
            let texts = messages.iter().filter_map(|message| message.get("content")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => prompt.to_owned(),
    }
}

/// The choices of a question: those of the metadata, else lines of the prompt such as `A) Rome`.
fn candidates(row: &Row<'_>, prompt: &str) -> Vec<String> {
    let metadata = row.metadata_object().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match metadata.get("choices") {
        Some(Value::Array(list)) => list.iter().map(text).collect(),
        Some(Value::Object(object)) => object.values().map(text).collect(),
        _ => prompt.lines().filter_map(lettered).map(str::to_owned).collect(),
    }
}

/// The text of `A) Rome`, `(A) Rome` or `A. Rome`.
fn lettered(line: &str) -> Option<&str> {
    let line = line.trim();
    let line = line.strip_prefix('(').unwrap_or(line);
    let rest = line.strip_prefix(|letter: char| letter.is_ascii_uppercase())?;
    Some(rest.strip_prefix([')', '.', ':'])?.trim()).filter(|text| !text.is_empty())
}

/// The words of a text in lower case.
fn words(lower: &str) -> Vec<&str> {
    lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).collect()
}

/// How many different candidates a text names, as whole words; one inside another does not count.
fn num_named(text: &str, candidates: &[String]) -> usize {
    if candidates.is_empty() {
        return 0;
    }
    let text = text.to_lowercase();
    let said = words(&text);
    let candidates: Vec<String> = candidates.iter().map(|candidate| candidate.to_lowercase()).collect();
    let mut named: Vec<Vec<&str>> = candidates
        .iter()
        .map(|candidate| words(candidate))
        .filter(|words| !words.is_empty() && said.windows(words.len()).any(|run| run == words.as_slice()))
        .collect();
    named.sort();
    named.dedup();
    let is_part = |one: &Vec<&str>| {
        named
            .iter()
            .any(|other| other.len() > one.len() && other.windows(one.len()).any(|run| run == one.as_slice()))
    };
    named.iter().filter(|one| !is_part(one)).count()
}

/// How many different letters of so many choices a text names, each as a word; an article is none.
fn num_letters(text: &str, num: usize) -> usize {
    let words: Vec<&str> = text.split_whitespace().collect();
    let letter = |(at, word): (usize, &&str)| {
        let mut letters = word.trim_matches(|c: char| !c.is_alphanumeric()).chars();
        let letter = letters.next().filter(|_| letters.next().is_none())?;
        let is_choice = ('A'..='Z').take(num).any(|known| known == letter);
        let follows =
            words.get(at + 1).is_some_and(|next| next.starts_with(|c: char| c.is_ascii_lowercase()));
        let is_article = matches!(*word, "A" | "I") && follows;
        (is_choice && !is_article).then_some(letter)
    };
    words.iter().enumerate().filter_map(letter).collect::<HashSet<char>>().len()
}

/// The share of the answer's runs of words that the prompt has; 0 for a short answer.
fn echo_share(answer: &str, prompt: &str) -> f64 {
    let hashes = |text: &str| -> Vec<u64> {
        words(&text.to_lowercase()).into_iter().map(|word| xxh3_64(word.as_bytes())).collect()
    };
    let answer = hashes(answer);
    if answer.len() < MIN_ECHO_WORDS {
        return 0.0;
    }
    let of_prompt: HashSet<u64> = hashes(prompt).windows(ECHO_RUN).map(run_key).collect();
    let runs = answer.windows(ECHO_RUN);
    let num = runs.len() as f64;
    runs.filter(|run| of_prompt.contains(&run_key(run))).count() as f64 / num
}

/// Runs of words are told apart by 64 bits, which the hashes of their words are mixed to.
fn run_key(run: &[u64]) -> u64 {
    // 2^64 over the golden ratio, odd.
    let mix = |key: u64, word: &u64| (key.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    run.iter().fold(0, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RewardSet;

    fn explained(spec: &str, row: Row<'_>) -> (f64, String) {
        let scored = RewardSet::parse(&[spec]).unwrap().score(&[row]).unwrap().remove(0);
        (scored.reward, scored.parts[0].reason.clone())
    }

    fn caught(response: &str) -> Option<String> {
        let prompt = "\"Which city is the capital of France, where the Seine flows through old bridges?\\nA) Rome\\nB) Paris\\nC) New Paris\"";
        let row = Row { prompt: Some(prompt), response, label: Some("Paris"), ..Row::default() };
        let (_, reason) = explained("guard:f1", row);
        reason.strip_prefix("caught: ").map(str::to_owned)
    }

    #[test]
    fn answers_that_hedge_or_echo_are_caught() {
        for (response, problem) in [
            ("\\boxed{4} or \\boxed{5}", "2 different boxes"),
            ("<think> \n</think>Paris", "a thought of 0 characters"),
            ("Rome, Paris", "2 of the choices named"),
            ("A B C", "3 of the choices named"),
            ("Answer: (A) or (B)", "2 of the choices named"),
            (
                "Which city is the capital of France, where the Seine flows through old bridges?",
                "100 % of the answer",
            ),
        ] {
            let what = caught(response).unwrap_or_default();
            assert!(what.starts_with(problem), "{response}: {what}");
        }
        for honest in [
            "Paris",
            "New Paris",
            "It is not Rome.\nParis",
            "A fine city it is: B",
            "\\boxed{4} so \\boxed{4}",
            "<think>Seine</think>Paris",
            "</think>",
        ] {
            assert!(honest == "</think>" || caught(honest).is_none(), "{honest}: {:?}", caught(honest));
        }
    }

    #[test]
    fn what_is_caught_and_what_it_earns_is_configured() {
        let row = |response| Row { response, label: Some("5"), ..Row::default() };
        let two = "\\boxed{4} or \\boxed{5}";
        assert!((explained("number", row(two)).0 - 1.0_f64).abs() < 1e-9);
        assert!((explained("guard:number", row(two)).0 - 0.0_f64).abs() < 1e-9);
        assert!((explained("guard:number boxes=2", row(two)).0 - 1.0_f64).abs() < 1e-9);
        assert!((explained("guard:number value=-1:0.5", row(two)).0 + 0.5_f64).abs() < 1e-9);
        let choices = "{\"choices\": {\"A\": \"red\", \"B\": \"green\"}}";
        let row =
            Row { response: "red green", label: Some("red"), metadata: Some(choices), ..Row::default() };
        assert!((explained("guard:f1 value=0.25", row).0 - 0.25_f64).abs() < 1e-9);
        assert!(RewardSet::parse(&["guard"]).unwrap_err().to_string().contains("expected a reward type"));
        assert!(
            RewardSet::parse(&["guard:number box=2"])
                .unwrap_err()
                .to_string()
                .contains("did you mean boxes?")
        );
    }
}
