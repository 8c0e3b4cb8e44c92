//! Several weighted sources as one: which one the prompt at a position comes from, and how far that one has come.
//!
//! Drawing by chance would leave short prefixes far from the weights. Here the first source takes, of the first `i`
//! positions, `floor(i w + f)` with its share `w` and a fraction `f` out of the seed, so its places are as even as they
//! can be (a Sturmian word); the second does the same among the positions the first left, and so on. Both the source of
//! position `i` and the number of its earlier positions follow from `i` alone, so the data cursor stays one number.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Prompt, PromptSource, Result};

/// Fixed-point shares and fractions have this many bits.
const BITS: u32 = 64;

/// The rule alone: positions to sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// For each source but the last: its share of what the ones before it leave, and its fraction.
    splits: Vec<(u64, u64)>,
}

impl Schedule {
    /// A schedule by these weights, all above 0. After any number `n` of positions each source has had `n` times its
    /// share, to within `k - 1` for `k` sources (1 for two), and most of the time much closer.
    pub fn new(weights: &[f64], seed: u64) -> Self {
        let mut left: f64 = weights.iter().sum();
        let mut splits = Vec::with_capacity(weights.len());
        for (i, weight) in weights.iter().enumerate().take(weights.len().saturating_sub(1)) {
            // The cast saturates: a share of 1, which rounding may give, becomes the largest below.
            let share = (weight / left * 2.0_f64.powi(BITS as i32)) as u64;
            splits.push((share, xxh3_64_with_seed(&(i as u64).to_le_bytes(), seed)));
            left -= weight;
        }
        Self { splits }
    }

    /// The source of position `at`, and how many earlier positions were its.
    pub fn place(&self, at: u64) -> (usize, u64) {
        let mut at = at;
        for (source, (share, fraction)) in self.splits.iter().enumerate() {
            let taken =
                |n: u64| ((u128::from(n) * u128::from(*share) + u128::from(*fraction)) >> BITS) as u64;
            let before = taken(at);
            if taken(at + 1) > before {
                return (source, before);
            }
            at -= before;
        }
        (self.splits.len(), at)
    }
}

/// Sources with their weights; each walks its own shuffle epoch by epoch, at the pace of its share.
pub struct Mixture {
    schedule: Schedule,
    sources: Vec<Box<dyn PromptSource>>,
}

impl Mixture {
    /// Sources of positive weight.
    pub fn new(sources: Vec<(Box<dyn PromptSource>, f64)>, seed: u64) -> Self {
        let (sources, weights): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
        Self { schedule: Schedule::new(&weights, seed), sources }
    }
}

impl fmt::Debug for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mixture").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

impl PromptSource for Mixture {
    /// As many prompts as all sources have together; within them a source may come round more than once, or not at all
    /// to its end, as its weight says.
    fn len(&self) -> Option<u64> {
        self.sources.iter().map(|source| source.len()).sum()
    }

    fn prompt(&self, cursor: u64) -> Result<Prompt> {
        let (source, position) = self.schedule.place(cursor);
        self.sources[source].prompt(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_is_close_to_the_weights_and_positions_count_up() {
        for (weights, most) in [
            (vec![0.7, 0.3], 1.0),
            (vec![1.0, 1.0], 1.0),
            (vec![1e-3, 1.0], 1.0),
            (vec![5.0, 3.0, 2.0], 2.5),
            (vec![1.0, 10.0, 0.1, 3.0, 2.0], 3.1),
        ] {
            for seed in 0..5 {
                let schedule = Schedule::new(&weights, seed);
                let total: f64 = weights.iter().sum();
                let mut counts = vec![0; weights.len()];
                for at in 0..20_000_u64 {
                    let (source, position) = schedule.place(at);
                    assert_eq!(position, counts[source], "position {at} of seed {seed}, {weights:?}");
                    counts[source] += 1;
                    for (count, weight) in counts.iter().zip(&weights) {
                        let off = (*count as f64 - (at + 1) as f64 * weight / total).abs();
                        assert!(off < most, "{weights:?} after {at}: {counts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn far_positions_follow_from_themselves_alone() {
        let schedule = Schedule::new(&[0.7, 0.3], 42);
        let at = 1 << 50;
        let (source, position) = schedule.place(at);
        let share = [0.7, 0.3][source];
        assert!((position as f64 - at as f64 * share).abs() < 2.0, "{position}");
        assert_eq!(Schedule::new(&[2.0], 1).place(17), (0, 17));
    }

    #[test]
    fn seeds_give_other_schedules_and_the_same_one_the_same_in_every_release() {
        let order = |seed| -> Vec<usize> {
            let schedule = Schedule::new(&[5.0, 3.0, 2.0], seed);
            (0..20).map(|at| schedule.place(at).0).collect()
        };
        assert!((0..9).any(|seed| order(seed) != order(42)));
        assert_eq!(order(42), GOLDEN);
    }
    const GOLDEN: [usize; 20] = [1, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0, 2, 0];
}
