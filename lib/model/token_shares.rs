//! Which tokens of a packed batch each context-parallel rank has.
//!
//! Every segment is cut into twice as many runs of neighbouring tokens as there are ranks, and rank r has run r from the front
//! and run r from the back: a causal token meets as many keys as it has tokens before it, and like this every rank meets about
//! as many (as in Megatron-LM). Lengths need not divide: the first runs have one token more.

use slime_weights::Share;

use crate::Segment;

/// A run of neighbouring tokens of a segment that a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which segment of the batch.
    pub segment: usize,
    /// Tokens of the segment before it.
    pub offset: usize,
    /// Tokens of it.
    pub len: usize,
    /// Its first token among those of the rank.
    pub start: usize,
}

/// The tokens of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenShares {
    pieces: Vec<Vec<Piece>>,
    tokens: Vec<Vec<usize>>,
}

impl TokenShares {
    /// Those of `segments`, which follow each other without gaps, over `size` ranks; of one rank all tokens in order.
    pub fn new(segments: &[Segment], size: usize) -> Self {
        let (mut pieces, mut tokens) = (vec![Vec::new(); size], vec![Vec::new(); size]);
        for rank in 0..size {
            let runs = if size == 1 { vec![0] } else { vec![rank, 2 * size - 1 - rank] };
            let num_runs = if size == 1 { 1 } else { 2 * size };
            for (number, segment) in segments.iter().enumerate() {
                for run in runs.iter().map(|run| Share { rank: *run, size: num_runs }.of(segment.len)) {
                    let start = tokens[rank].len();
                    tokens[rank].extend(segment.start + run.start..segment.start + run.end);
                    if !run.is_empty() {
                        pieces[rank].push(Piece {
                            segment: number,
                            offset: run.start,
                            len: run.len(),
                            start,
                        });
                    }
                }
            }
        }
        Self { pieces, tokens }
    }

    /// The tokens of a rank, by their numbers in the batch, in its order.
    pub fn of(&self, rank: usize) -> &[usize] {
        &self.tokens[rank]
    }

    /// Tokens of each rank.
    pub fn counts(&self) -> Vec<usize> {
        self.tokens.iter().map(Vec::len).collect()
    }

    /// Where each token of the batch is when those of all ranks stand one behind the other.
    pub fn places(&self) -> Vec<i64> {
        let all = || self.tokens.iter().flatten();
        let mut places = vec![0; all().count()];
        all().enumerate().for_each(|(at, token)| places[*token] = at as i64);
        places
    }

    pub(crate) fn pieces(&self, rank: usize) -> &[Piece] {
        &self.pieces[rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_a_run_from_either_end_of_every_segment() {
        let segments = [Segment::alone(0, 8), Segment::after((0, 8), 8, 3)];
        let shares = TokenShares::new(&segments, 2);
        assert_eq!(shares.of(0), [0, 1, 6, 7, 8]);
        assert_eq!(shares.of(1), [2, 3, 4, 5, 9, 10]);
        assert_eq!(shares.places(), [0, 1, 5, 6, 7, 8, 2, 3, 4, 9, 10]);
        assert_eq!(TokenShares::new(&segments, 1).of(0), (0..11).collect::<Vec<_>>());
    }

    #[test]
    fn every_token_is_on_one_rank_and_the_work_is_shared() {
        let segments = [Segment::alone(0, 1), Segment::alone(1, 1000), Segment::after((1, 1000), 1001, 77)];
        for size in 1..=8 {
            let shares = TokenShares::new(&segments, size);
            let mut all: Vec<usize> = (0..size).flat_map(|rank| shares.of(rank).to_vec()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..1078).collect::<Vec<_>>());
            let work = |rank| shares.of(rank).iter().filter(|at| **at > 0 && **at <= 1000).sum::<usize>();
            let (least, most) = ((0..size).map(work).min().unwrap(), (0..size).map(work).max().unwrap());
            assert!((most - least) as f64 <= 0.02 * most as f64 || size == 1, "{size}: {least} to {most}");
        }
    }
}
