//! Micro-batches of a token budget in which a prompt shared by several samples is computed once.
//!
//! Gradients are those of the unshared computation: a response's tokens see the prompt's keys and values through the
//! segment's prefix, and the prompt's last hidden state predicts the first token of every response.

use std::collections::HashMap;

use slime_model::Segment;
use slime_record::Sample;

use crate::partition::{balance, first_fit};
use crate::{Error, Result};

/// Where a trained token is: which sample, and which of its response tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index into the samples that were packed.
    pub sample: usize,
    /// Index into the sample's response.
    pub token: usize,
}

/// Where the tokens of a segment come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Index into the samples that were packed.
    pub sample: usize,
    /// Index of the segment's first token among the sample's.
    pub token: usize,
}

/// One forward pass. Row r of the output is a trained token: `places[r]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MicroBatch {
    /// The tokens that are fed, `[t]`.
    pub tokens: Vec<i64>,
    /// Who sees whom.
    pub segments: Vec<Segment>,
    /// Whose tokens each segment feeds; of a shared prompt the first sample that shares it.
    pub sources: Vec<Source>,
    /// For each trained token, the fed token whose hidden state predicts it, `[r]`.
    pub rows: Vec<i64>,
    /// The trained tokens, `[r]`.
    pub targets: Vec<i64>,
    /// Where they belong, `[r]`.
    pub places: Vec<Place>,
}

impl MicroBatch {
    /// One token that predicts nothing: what a rank computes that has no samples left while others go on.
    pub fn idle() -> Self {
        Self {
            tokens: vec![0],
            segments: vec![Segment::alone(0, 1)],
            sources: vec![Source { sample: 0, token: 0 }],
            ..Self::default()
        }
    }
}

/// Which rows a sample has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rows {
    /// One for each trained token: the fed token before it, whose hidden state predicts it.
    #[default]
    Trained,
    /// One: the sample's last token. Its target is token 0, which nobody reads.
    Last,
}

/// How samples are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packing {
    /// Tokens of a micro-batch (what does not fit together stands alone).
    pub max_tokens: usize,
    /// Which rows a sample has.
    pub rows: Rows,
    /// Whether the samples of a group stay in one micro-batch.
    pub keeps_groups: bool,
}

/// A prompt with some of the responses to it: what shares one computation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    samples: Vec<usize>,
    num_tokens: usize,
}

impl Rows {
    /// Response tokens that must be fed for the rows of `sample`; `None` where it has no row.
    fn num_fed(self, sample: &Sample) -> Option<usize> {
        match self {
            // Up to the last trained one, which is only predicted.
            Self::Trained => sample.loss_mask.iter().rposition(|mask| *mask != 0),
            Self::Last => Some(sample.response_len()),
        }
    }
}

/// Splits the samples of each prompt into units of at most `max_tokens`, if one sample alone does not exceed it.
/// Samples without a row are in no unit.
fn units(samples: &[&Sample], packing: Packing) -> Vec<Unit> {
    let mut open: HashMap<&[u32], usize> = HashMap::new();
    let mut units: Vec<Unit> = Vec::new();
    for (i, sample) in samples.iter().enumerate() {
        let Some(more) = packing.rows.num_fed(sample) else { continue };
        let prompt = sample.prompt_tokens();
        match open.get(prompt).map(|at| &mut units[*at]) {
            Some(unit) if packing.keeps_groups || unit.num_tokens + more <= packing.max_tokens => {
                unit.samples.push(i);
                unit.num_tokens += more;
            }
            _ => {
                open.insert(prompt, units.len());
                units.push(Unit { samples: vec![i], num_tokens: prompt.len() + more });
            }
        }
        if packing.keeps_groups && samples.get(i + 1).is_none_or(|next| group_of(next) != group_of(sample)) {
            open.clear();
        }
    }
    units
}

fn group_of(sample: &Sample) -> (u64, u32) {
    (sample.step, sample.group)
}

/// Units that must not be parted: those of one group where groups are kept, else each by itself.
fn bundles(samples: &[&Sample], units: Vec<Unit>, packing: Packing) -> Vec<Vec<Unit>> {
    let group = |unit: &Unit| unit.samples.first().map(|first| group_of(samples[*first]));
    let mut bundles: Vec<Vec<Unit>> = Vec::new();
    for unit in units {
        match bundles.last_mut() {
            Some(last) if packing.keeps_groups && last.first().map(group) == Some(group(&unit)) => {
                last.push(unit);
            }
            _ => bundles.push(vec![unit]),
        }
    }
    bundles
}

/// Packs `samples` for each of `num_ranks`: units are balanced over the ranks by tokens, then packed first-fit. Where
/// groups are kept, samples of a group stand together in `samples`.
///
/// # Errors
/// A sample whose fields disagree, or a prompt of no tokens.
pub fn pack(samples: &[&Sample], packing: Packing, num_ranks: usize) -> Result<Vec<Vec<MicroBatch>>> {
    for sample in samples {
        check(sample, packing.rows)?;
    }
    let bundles = bundles(samples, units(samples, packing), packing);
    let costs: Vec<usize> =
        bundles.iter().map(|bundle| bundle.iter().map(|unit| unit.num_tokens).sum()).collect();
    let rank_batches = |items: Vec<usize>| {
        let costs: Vec<usize> = items.iter().map(|item| costs[*item]).collect();
        let bins = first_fit(&costs, packing.max_tokens);
        let batch = |bin: Vec<usize>| {
            micro_batch(samples, bin.iter().flat_map(|at| &bundles[items[*at]]), packing.rows)
        };
        bins.into_iter().map(batch).collect()
    };
    Ok(balance(&costs, num_ranks).into_iter().map(rank_batches).collect())
}

fn check(sample: &Sample, rows: Rows) -> Result<()> {
    let wrong = |field, expected: String, got: usize| Error::Sample {
        id: sample.id(),
        field,
        expected,
        got: got.to_string(),
    };
    let response_len = sample.response_len();
    if sample.prompt_len as usize > sample.tokens.len() {
        return Err(wrong(
            "prompt_len",
            format!("at most {}", sample.tokens.len()),
            sample.prompt_len as usize,
        ));
    }
    if sample.loss_mask.len() != response_len {
        return Err(wrong("loss_mask", format!("{response_len} values"), sample.loss_mask.len()));
    }
    let log_probs = sample.rollout_log_probs.len();
    if log_probs != 0 && log_probs != response_len {
        return Err(wrong("rollout_log_probs", format!("{response_len} values or none"), log_probs));
    }
    if sample.prompt_len == 0 && rows.num_fed(sample).is_some() {
        return Err(wrong("prompt_len", "at least 1 token".to_owned(), 0));
    }
    Ok(())
}

fn micro_batch<'a>(samples: &[&Sample], units: impl Iterator<Item = &'a Unit>, rows: Rows) -> MicroBatch {
    let mut batch = MicroBatch::default();
    for unit in units {
        let Some(&first) = unit.samples.first() else { continue };
        let prompt = samples[first].prompt_tokens();
        batch.sources.push(Source { sample: first, token: 0 });
        let prefix = (batch.tokens.len(), prompt.len());
        batch.segments.push(Segment::alone(prefix.0, prefix.1));
        batch.tokens.extend(prompt.iter().map(|token| i64::from(*token)));
        for &i in &unit.samples {
            batch.push_response(prefix, i, samples[i], rows);
        }
    }
    batch
}

impl MicroBatch {
    fn push_response(&mut self, prefix: (usize, usize), i: usize, sample: &Sample, rows: Rows) {
        let start = self.tokens.len();
        let response = sample.response_tokens();
        let num_fed = rows.num_fed(sample).unwrap_or(0);
        if num_fed > 0 {
            self.segments.push(Segment::after(prefix, start, num_fed));
            self.sources.push(Source { sample: i, token: prefix.1 });
            self.tokens.extend(response[..num_fed].iter().map(|token| i64::from(*token)));
        }
        // The fed token before response token `token`.
        let before = |token: usize| if token == 0 { prefix.0 + prefix.1 - 1 } else { start + token - 1 };
        if rows == Rows::Last {
            self.push_row(before(num_fed), 0, Place { sample: i, token: num_fed.saturating_sub(1) });
            return;
        }
        for (token, target) in response.iter().enumerate().filter(|(token, _)| sample.loss_mask[*token] != 0)
        {
            self.push_row(before(token), *target, Place { sample: i, token });
        }
    }

    fn push_row(&mut self, row: usize, target: u32, place: Place) {
        self.rows.push(row as i64);
        self.targets.push(i64::from(target));
        self.places.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(prompt: &[u32], response: &[u32], loss_mask: &[u8]) -> Sample {
        Sample {
            tokens: [prompt, response].concat(),
            prompt_len: prompt.len() as u32,
            loss_mask: loss_mask.to_vec(),
            ..Sample::default()
        }
    }

    fn packed(samples: &[Sample], max_tokens: usize, num_ranks: usize) -> Vec<Vec<MicroBatch>> {
        let samples: Vec<&Sample> = samples.iter().collect();
        pack(&samples, Packing { max_tokens, ..Packing::default() }, num_ranks).unwrap()
    }

    #[test]
    fn pairs_stay_together_and_have_one_row_each_where_only_the_last_counts() {
        let of_group = |group, sample: Sample| Sample { group, ..sample };
        let samples = [
            of_group(0, sample(&[1, 2], &[3, 4], &[1, 1])),
            of_group(0, sample(&[1, 2], &[], &[])),
            of_group(1, sample(&[1, 2], &[5], &[0])),
            of_group(1, sample(&[7], &[8, 9], &[1, 1])),
        ];
        let samples: Vec<&Sample> = samples.iter().collect();
        let packing = Packing { max_tokens: 3, rows: Rows::Last, keeps_groups: true };
        let batches = pack(&samples, packing, 1).unwrap().remove(0);
        assert_eq!(batches.len(), 2);
        assert_eq!(
            (batches[0].tokens.as_slice(), batches[0].rows.as_slice()),
            (&[1, 2, 3, 4][..], &[3, 1][..])
        );
        assert_eq!(batches[1].tokens, [1, 2, 5, 7, 8, 9]);
        assert_eq!(batches[1].rows, [2, 5]);
        assert_eq!(batches[1].places.iter().map(|place| place.sample).collect::<Vec<_>>(), [2, 3]);
        for num_ranks in [2, 3] {
            let ranks = pack(&samples, Packing { max_tokens: 100, ..packing }, num_ranks).unwrap();
            assert_eq!(ranks.iter().flatten().map(|batch| batch.rows.len()).collect::<Vec<_>>(), [2, 2]);
        }
    }

    #[test]
    fn shared_prompt_is_fed_once() {
        let samples = [sample(&[1, 2], &[3, 4, 5], &[1, 1, 1]), sample(&[1, 2], &[6], &[1])];
        let batches = packed(&samples, 100, 1);
        let batch = &batches[0][0];
        assert_eq!(batch.tokens, [1, 2, 3, 4]);
        assert_eq!(batch.segments, [Segment::alone(0, 2), Segment::after((0, 2), 2, 2)]);
        assert_eq!(batch.sources, [Source { sample: 0, token: 0 }, Source { sample: 0, token: 2 }]);
        assert_eq!(batch.rows, [1, 2, 3, 1]);
        assert_eq!(batch.targets, [3, 4, 5, 6]);
        assert_eq!(batch.places[3], Place { sample: 1, token: 0 });
    }

    #[test]
    fn masked_tokens_have_no_row_and_a_masked_tail_is_not_fed() {
        let samples = [sample(&[1], &[2, 3, 4, 5], &[0, 1, 0, 0]), sample(&[1], &[7], &[0])];
        let batches = packed(&samples, 100, 1);
        assert_eq!((batches[0][0].tokens.as_slice(), batches[0][0].rows.as_slice()), (&[1, 2][..], &[1][..]));
        assert_eq!(batches[0][0].targets, [3]);
    }

    #[test]
    fn budget_splits_a_group_and_a_longer_sample_stands_alone() {
        let samples: Vec<Sample> = (0..4).map(|_| sample(&[1, 2, 3], &[4, 5, 6], &[1; 3])).collect();
        let batches = packed(&samples, 7, 1);
        assert_eq!(batches[0].iter().map(|batch| batch.tokens.len()).collect::<Vec<_>>(), [7, 7]);
        assert_eq!(packed(&samples, 2, 1)[0].len(), 4);
    }

    #[test]
    fn ranks_share_every_sample_once() {
        let samples: Vec<Sample> =
            (1..10u32).map(|n| sample(&[n], &vec![n; n as usize], &vec![1; n as usize])).collect();
        let batches = packed(&samples, 16, 3);
        let mut seen: Vec<usize> =
            batches.iter().flatten().flat_map(|b| b.places.iter().map(|p| p.sample)).collect();
        assert_eq!(seen.len(), 45);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn empty_prompt_is_refused() {
        let error = pack(&[&sample(&[], &[1], &[1])], Packing::default(), 1).unwrap_err();
        assert_eq!(error.to_string(), "sample 0/0/0.0.0: prompt_len: expected at least 1 token, got 0");
    }
}
