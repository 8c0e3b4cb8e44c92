//! The curriculum by pass rate: prompts that were too easy or too hard give way to remembered ones that were neither.

use std::collections::BTreeMap;

use slime_config::Curriculum;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{PromptSource, Result, permute};

/// Keeps the random numbers of curricula apart from others of the seed.
const SEED: u64 = 0x6375_7272;
/// Remembered prompts that are looked at before a draw is left as it is: another stage may have other sources.
const NUM_TRIES: u64 = 8;

/// How often a prompt was answered rightly when it was asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asked<'a> {
    /// Identity of the prompt.
    pub prompt_id: &'a str,
    /// A position of the data stream where it stands.
    pub position: u64,
    /// Share of samples whose reward was 1.
    pub pass_rate: f64,
}

/// The newest pass rate of every prompt that is remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct PassRates {
    curriculum: Curriculum,
    by_prompt: BTreeMap<String, f64>,
    /// Prompts inside of the window, with a position of the data stream where each stands.
    window: Vec<(String, u64)>,
}

impl PassRates {
    /// From what was asked, the oldest first.
    pub fn new<'a>(curriculum: Curriculum, asked: impl Iterator<Item = Asked<'a>>) -> Self {
        let mut newest: BTreeMap<&str, Asked<'a>> = BTreeMap::new();
        for asked in asked {
            newest.insert(asked.prompt_id, asked);
        }
        let inside = newest.values().filter(|asked| curriculum.contains(asked.pass_rate));
        let window = inside.map(|asked| (asked.prompt_id.to_owned(), asked.position)).collect();
        let by_prompt =
            newest.into_iter().map(|(prompt_id, asked)| (prompt_id.to_owned(), asked.pass_rate)).collect();
        Self { curriculum, by_prompt, window }
    }

    /// The position whose prompt the draw at `cursor` gets: its own, or that of a remembered prompt inside of the window where
    /// its own lies outside. Follows from the pass rates, the cursor and the seed.
    ///
    /// # Errors
    /// A row that cannot be read.
    pub fn choose(&self, cursor: u64, seed: u64, source: &dyn PromptSource) -> Result<u64> {
        let seed = seed ^ SEED;
        // 53 bits make an even number from 0 to below 1.
        let chance = (xxh3_64_with_seed(&cursor.to_le_bytes(), seed) >> 11) as f64 / (1_u64 << 53) as f64;
        let len = self.window.len() as u64;
        if chance >= self.curriculum.share || len == 0 {
            return Ok(cursor);
        }
        let own = source.prompt(cursor)?.prompt_id;
        if self.by_prompt.get(&own).is_none_or(|pass_rate| self.curriculum.contains(*pass_rate)) {
            return Ok(cursor);
        }
        // Those of neighbouring cursors follow each other in a shuffled order, so that they are different ones.
        for at in (0..NUM_TRIES).map(|tries| cursor.wrapping_add(tries * (len / 2 + 1))) {
            let (prompt_id, position) = &self.window[permute(at % len, len, seed, at / len) as usize];
            if source.prompt(*position)?.prompt_id == *prompt_id {
                return Ok(*position);
            }
        }
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Prompt;

    /// As many prompts as the number says, in order, without end.
    struct Numbers(u64);

    impl PromptSource for Numbers {
        fn len(&self) -> Option<u64> {
            Some(self.0)
        }

        fn prompt(&self, cursor: u64) -> Result<Prompt> {
            Ok(Prompt {
                prompt_id: (cursor % self.0).to_string(),
                source: String::new(),
                prompt: String::new(),
                label: None,
                metadata: None,
                tools: None,
                responses: Vec::new(),
            })
        }
    }

    /// Of 100 prompts the first 20 are too hard, 20 are right, 20 too easy; the others were never asked.
    fn pass_rates(share: f64) -> PassRates {
        let names: Vec<String> = (0..60).map(|number| number.to_string()).collect();
        let asked = |(position, name): (u64, &'static str)| Asked {
            prompt_id: name,
            position,
            pass_rate: (position / 20) as f64 / 2.0,
        };
        let names = (0..).zip(names.into_iter().map(|name| &*name.leak()));
        let curriculum = Curriculum { min: 0.1, max: 0.9, share };
        // What was asked before does not count any more.
        let before = (0..60).map(|_| Asked { prompt_id: "70", position: 70, pass_rate: 0.0 });
        let after = [Asked { prompt_id: "70", position: 170, pass_rate: 0.5 }];
        PassRates::new(curriculum, before.chain(names.map(asked)).chain(after))
    }

    fn chosen(pass_rates: &PassRates, source: &Numbers) -> Vec<u64> {
        (100..200).map(|cursor| pass_rates.choose(cursor, 3, source).unwrap()).collect()
    }

    #[test]
    fn prompts_outside_of_the_window_give_way_to_different_ones_inside() {
        let source = Numbers(100);
        let chosen = chosen(&pass_rates(1.0), &source);
        let number = |position: &u64| position % 100;
        assert_eq!(chosen[20..40], (120..140).collect::<Vec<_>>(), "what is inside is asked");
        assert_eq!(chosen[60..], (160..200).collect::<Vec<_>>(), "what is not known is asked");
        let first: BTreeSet<u64> = chosen[..20].iter().map(number).collect();
        assert!(first.iter().all(|prompt| (20..40).contains(prompt) || *prompt == 70), "{first:?}");
        // 21 prompts are inside; the walk through them begins anew at a multiple of that.
        assert!(first.len() >= 15, "{first:?}");
    }

    #[test]
    fn the_share_of_draws_is_kept_and_repeats() {
        let source = Numbers(100);
        let half = pass_rates(0.5);
        let first = chosen(&half, &source);
        let own = (0..)
            .zip(&first)
            .filter(|(i, position)| **position == 100 + i && !(20..40).contains(i) && *i < 60);
        assert!((10..30).contains(&own.count()), "of 40 about a half");
        assert_eq!(chosen(&half, &source), first);
    }

    #[test]
    fn without_a_prompt_inside_the_stream_goes_on() {
        let source = Numbers(100);
        let hard = Asked { prompt_id: "0", position: 0, pass_rate: 0.0 };
        let curriculum = Curriculum { min: 0.1, max: 0.9, share: 1.0 };
        let none = PassRates::new(curriculum, [hard].into_iter());
        assert_eq!(none.choose(100, 3, &source).unwrap(), 100);
        // Another stage's source has other prompts at the positions of the remembered ones.
        let other = Asked { prompt_id: "elsewhere", position: 1, pass_rate: 0.5 };
        let elsewhere = PassRates::new(curriculum, [hard, other].into_iter());
        assert_eq!(elsewhere.choose(100, 3, &source).unwrap(), 100);
    }
}
