//! Mutated answers: whatever they become, no reward panics, verdicts repeat, and an answer equals itself.
//!
//! The corpus is `corpus.txt` (a label, a tab, a response on each line; short test cases of Math-Verify, Apache-2.0) and the pairs of `pairs.rs`. Mutations come from
//! a generator with a fixed seed, so a case that fails is the same on every machine.

use slime_verifier::{Error, RewardSet, Row, Scored};

use crate::hostile::KINDS;
use crate::pairs::{DIFFERENT, EQUAL, pairs};

/// Cases of the ordinary run.
const NUM_CASES: u64 = 2_000;
/// Cases of the long sweep, unless `SLIME_FUZZ_CASES` says otherwise.
const NUM_LONG_CASES: u64 = 300_000;

/// Pieces that mean something to lexers, extraction or normal forms.
const PIECES: &[&str] = &[
    "\\",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "|",
    "$",
    "$$",
    "\\(",
    "\\)",
    "\\boxed{",
    "\\frac",
    "\\frac{1}{",
    "\\sqrt",
    "\\sqrt[",
    "^",
    "_",
    "^{",
    "!",
    "%",
    "\\%",
    "^\\circ",
    "\\pm",
    "\\infty",
    "-\\infty",
    "\\cup",
    "\\cap",
    "\\setminus",
    "\\in",
    "\\le",
    "<",
    "=",
    "\\ne",
    ",",
    ";",
    ":",
    " and ",
    " or ",
    "\\text{",
    "\\text{ cm}",
    "cm^2",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "&",
    "\\\\",
    "\\left",
    "\\right",
    "\\left.",
    "\\sin",
    "\\log_",
    "\\ln",
    "\\exp(",
    "i",
    "e",
    "pi",
    "x",
    "y",
    "f(",
    "\\mathbb{R}",
    "\\{",
    "\\}",
    "\\mid",
    "0",
    "1",
    "2",
    "9",
    "99999999999999999999",
    "0.5",
    ".",
    "1,000",
    "1e9",
    "1e400",
    "e-400",
    "0.\\overline{3}",
    "½",
    "√",
    "∞",
    "é",
    "\u{200b}",
    "\n",
    "####",
    "final answer is ",
    "The answer is ",
    "Answer: ",
    "</think>",
    "<think>",
    "<|im_end|>",
    "\\gcd(",
    "\\binom{",
    "\\lfloor",
    "\\rfloor",
    "floor(",
    "max(",
    "\\quadx",
    "\\not=",
    "\\mathrm{e}",
    "\\operatorname{lcm}(",
    "U",
    "million",
    "_2",
    "'",
];

/// The generator `SplitMix64` (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Labels and responses as they are.
fn corpus() -> Vec<(String, String)> {
    [include_str!("corpus.txt"), EQUAL, DIFFERENT].into_iter().flat_map(pairs).collect()
}

/// A text with a few changes; `other` lends pieces of itself.
fn mutated(text: &str, other: &str, random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    let lender: Vec<char> = other.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(letters.len() + 1);
        let end = (at + 1 + random.below(6)).min(letters.len());
        match random.below(6) {
            0 if at < end => drop(letters.drain(at..end)),
            1 => drop(letters.splice(at..at, PIECES[random.below(PIECES.len())].chars())),
            2 if at < end => drop(letters.splice(at..end, PIECES[random.below(PIECES.len())].chars())),
            // A piece many times over.
            3 if at < end => {
                let piece = letters[at..end].to_vec();
                let bound = if random.below(20) == 0 { 300 } else { 4 };
                let num = 1 + random.below(bound);
                drop(letters.splice(at..at, piece.repeat(num)));
            }
            4 => {
                let from = random.below(lender.len() + 1);
                let to = (from + random.below(20)).min(lender.len());
                drop(letters.splice(at..at, lender[from..to].iter().copied()));
            }
            _ if at < end => {
                let with = random.below(letters.len());
                letters.swap(at, with);
            }
            _ => {}
        }
    }
    letters.truncate(6000);
    letters.into_iter().collect()
}

/// The verdict, or nothing where the label has no number.
fn score(set: &RewardSet, rows: &[Row<'_>]) -> Option<Vec<Scored>> {
    match set.score(rows) {
        Ok(scored) => Some(scored),
        Err(Error::Row { source, .. }) if matches!(*source, Error::LabelWithoutNumber { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

fn row<'a>(response: &'a str, label: &'a str) -> Row<'a> {
    Row { response, label: Some(label), ..Row::default() }
}

/// Whether a text in a box is the box's content, and no part of it is taken for a label's answer.
fn is_plain(text: &str) -> bool {
    let mut depth = 0_i32;
    let mut is_escaped = false;
    let is_balanced = text.chars().all(|c| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth >= 0
    });
    let lower = text.to_lowercase();
    let marks = ["box", "####", "answer", "think>", "<|", "\n"];
    is_balanced
        && depth == 0
        && !is_escaped
        && !text.trim().is_empty()
        && marks.iter().all(|mark| !lower.contains(mark))
}

fn sweep(seed: u64, num_cases: u64) {
    let corpus = corpus();
    let mut random = Random(seed);
    let sets: Vec<RewardSet> = KINDS.iter().map(|kind| RewardSet::parse(&[*kind]).unwrap()).collect();
    for case in 0..num_cases {
        let (label, response) = &corpus[random.below(corpus.len())];
        let (other_label, other) = &corpus[random.below(corpus.len())];
        let response = mutated(response, other, &mut random);
        let label =
            if random.below(3) == 0 { mutated(label, other_label, &mut random) } else { label.clone() };
        let boxed = format!("so \\boxed{{{response}}}");
        for (kind, set) in KINDS.iter().zip(&sets) {
            let alone = score(set, &[row(&response, &label)]);
            if *kind != "math" {
                continue;
            }
            // Between neighbours the verdict is the same.
            let rows = [row(&boxed, other_label), row(&response, &label), row(other, &label)];
            let among = score(set, &rows).map(|mut scored| scored.swap_remove(1));
            assert_eq!(
                alone.map(|mut scored| scored.remove(0)),
                among,
                "case {case}: {response:?} / {label:?}"
            );
            if is_plain(&response) {
                let itself = score(set, &[row(&boxed, &response)]).unwrap().remove(0);
                assert!(
                    itself.reward > 0.5,
                    "case {case}: {response:?} is not itself: {}",
                    itself.parts[0].reason
                );
            }
        }
    }
}

#[test]
fn mutated_answers_are_judged_without_panic() {
    sweep(1, NUM_CASES);
}

#[test]
#[ignore = "long sweep: tests/run.sh --all"]
fn long_sweep_of_mutated_answers() {
    let wanted = std::env::var("SLIME_FUZZ_CASES").ok();
    sweep(2, wanted.map_or(NUM_LONG_CASES, |num| num.parse().expect("SLIME_FUZZ_CASES is a number")));
}
