//! The corpus that fuzzing found, replayed: no input panics. `fuzz/` makes more of it.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../fuzz/inputs.rs"]
mod inputs;

use std::collections::HashMap;

use slime_verifier::{RewardSet, Row};

/// Bytes of long responses; a tenth without optimisation.
const MAX_BYTES: usize = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };

/// Inputs as JSON strings, one a line, each scored in the rows that `rows` makes of it; how many rows there were.
fn replay(corpus: &str, rows: impl Fn(&str, &mut dyn FnMut(&str, Row<'_>))) -> usize {
    let mut sets: HashMap<String, RewardSet> = HashMap::new();
    let mut num_rows = 0;
    for line in corpus.lines() {
        let input: String = serde_json::from_str(line).unwrap();
        rows(&input, &mut |kind, row| {
            let set = sets.entry(kind.to_owned()).or_insert_with(|| RewardSet::parse(&[kind]).unwrap());
            num_rows += set.try_score(&[row]).len();
        });
    }
    num_rows
}

#[test]
fn inputs_that_fuzzing_found_are_scored() {
    assert!(replay(include_str!("fuzz/math.jsonl"), inputs::math) > 1000);
    assert!(replay(include_str!("fuzz/text.jsonl"), inputs::text) > 200);
    assert!(
        replay(include_str!("fuzz/long.jsonl"), |text, score| inputs::long(text, MAX_BYTES, score)) > 100
    );
}
