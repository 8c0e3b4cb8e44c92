//! Sums of two numbers: the smallest task with a verifiable answer, with a part that is never trained.

use crate::{Error, Prompt, PromptSource, Result, permute};
use serde_json::json;
use slime_record::PromptContent;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Which part of the tasks is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Tasks that are trained on.
    Train,
    /// Tasks that training never sees.
    HeldOut,
}

/// One pair of operands in this many is held out.
const HELD_OUT_ONE_IN: u64 = 8;
/// Up to this difficulty all pairs are listed, so that an epoch asks each exactly once.
const LISTED_BELOW: u64 = 257;
/// The hash that splits depends on nothing but the operands, so no run ever trains on a held-out pair.
const SPLIT_SEED: u64 = 0x0041_5249_5448;

/// "Compute a + b." with operands below the difficulty.
#[derive(Debug)]
pub struct Arithmetic {
    difficulty: u64,
    split: Split,
    seed: u64,
    /// All pairs of the split, when there are few; empty when they are drawn.
    pairs: Vec<(u64, u64)>,
}

impl Arithmetic {
    /// The tasks of a split with operands in `0..difficulty`.
    ///
    /// # Errors
    /// [`Error::Empty`] when the split has no task at this difficulty.
    pub fn new(difficulty: u64, split: Split, seed: u64) -> Result<Self> {
        let mut pairs = Vec::new();
        if difficulty < LISTED_BELOW {
            let all = (0..difficulty).flat_map(|a| (0..difficulty).map(move |b| (a, b)));
            pairs.extend(all.filter(|&(a, b)| split_of(a, b) == split));
            if pairs.is_empty() {
                let reason = format!("no pair of operands below {difficulty} belongs to the split");
                return Err(Error::Empty { name: "arithmetic".to_owned(), reason });
            }
        }
        Ok(Self { difficulty, split, seed, pairs })
    }

    fn operands(&self, cursor: u64) -> (u64, u64) {
        let len = self.pairs.len() as u64;
        if len > 0 {
            let row = permute(cursor % len, len, self.seed, cursor / len);
            return self.pairs[row as usize];
        }
        // Draw until the pair belongs to the split; 7 of 8 or 1 of 8 draws do.
        let draw = |part: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&cursor.to_le_bytes());
            bytes[8..].copy_from_slice(&part.to_le_bytes());
            let random = xxh3_64_with_seed(&bytes, self.seed);
            // Multiply and shift (Lemire 2019): even to within difficulty / 2^64.
            ((u128::from(random) * u128::from(self.difficulty)) >> 64) as u64
        };
        let mut attempt = 0;
        loop {
            let (a, b) = (draw(2 * attempt), draw(2 * attempt + 1));
            if split_of(a, b) == self.split {
                return (a, b);
            }
            attempt += 1;
        }
    }
}

fn split_of(a: u64, b: u64) -> Split {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    let held_out = xxh3_64_with_seed(&bytes, SPLIT_SEED).is_multiple_of(HELD_OUT_ONE_IN);
    if held_out { Split::HeldOut } else { Split::Train }
}

impl PromptSource for Arithmetic {
    fn len(&self) -> Option<u64> {
        (!self.pairs.is_empty()).then_some(self.pairs.len() as u64)
    }

    fn prompt(&self, cursor: u64) -> Result<Prompt> {
        let (a, b) = self.operands(cursor);
        let text = format!("Compute {a} + {b}. Reply with only the number.");
        Ok(Prompt {
            prompt_id: format!("arithmetic:{a}+{b}"),
            source: "arithmetic".to_owned(),
            prompt: PromptContent::Text(text).to_json(),
            label: Some((u128::from(a) + u128::from(b)).to_string()),
            metadata: Some(json!({"difficulty": self.difficulty}).to_string()),
            tools: None,
            responses: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ids(difficulty: u64, split: Split, num: u64) -> HashSet<String> {
        let tasks = Arithmetic::new(difficulty, split, 1).unwrap();
        (0..num).map(|cursor| tasks.prompt(cursor).unwrap().prompt_id).collect()
    }

    #[test]
    fn train_and_held_out_tasks_share_nothing_and_are_together_everything() {
        let (train, held_out) = (ids(10, Split::Train, 300), ids(10, Split::HeldOut, 300));
        assert!(train.is_disjoint(&held_out));
        assert_eq!(train.len() + held_out.len(), 100);
        assert!((5..=20).contains(&held_out.len()), "{}", held_out.len());
        let (train, held_out) = (ids(1 << 20, Split::Train, 500), ids(1 << 20, Split::HeldOut, 500));
        assert!(train.is_disjoint(&held_out));
        assert!(train.len() > 490 && held_out.len() > 490);
    }

    #[test]
    fn an_epoch_of_few_tasks_asks_each_once() {
        let tasks = Arithmetic::new(10, Split::Train, 4).unwrap();
        let len = tasks.len().unwrap();
        let once: HashSet<_> = (0..len).map(|cursor| tasks.prompt(cursor).unwrap().prompt_id).collect();
        assert_eq!(once.len() as u64, len);
    }

    #[test]
    fn the_label_is_the_sum_and_the_operands_stay_below_the_difficulty() {
        for difficulty in [3, 10, 100_000, u64::MAX] {
            let tasks = Arithmetic::new(difficulty, Split::Train, 2).unwrap();
            for cursor in 0..50 {
                let prompt = tasks.prompt(cursor).unwrap();
                let (a, b) = prompt.prompt_id["arithmetic:".len()..].split_once('+').unwrap();
                let (a, b): (u64, u64) = (a.parse().unwrap(), b.parse().unwrap());
                assert!(a < difficulty && b < difficulty);
                assert_eq!(prompt.label.unwrap(), (u128::from(a) + u128::from(b)).to_string());
                assert_eq!(prompt.prompt, format!("\"Compute {a} + {b}. Reply with only the number.\""));
            }
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        let first = |seed| {
            let tasks = Arithmetic::new(1000, Split::Train, seed).unwrap();
            (0..5).map(|cursor| tasks.prompt(cursor).unwrap().prompt_id).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }

    #[test]
    fn a_split_without_tasks_is_refused() {
        let splits = [Split::Train, Split::HeldOut].map(|split| Arithmetic::new(1, split, 0).is_ok());
        assert_eq!(splits.iter().filter(|&&ok| ok).count(), 1);
        assert!(Arithmetic::new(0, Split::Train, 0).is_err());
    }
}
