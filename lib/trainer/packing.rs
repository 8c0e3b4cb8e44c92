//! Micro-batches of a token budget in which a prompt shared by several samples is computed once, as many on every rank.
//!
//! Gradients are those of the unshared computation: a response's tokens see the prompt's keys and values through the
//! segment's prefix, and the prompt's last hidden state predicts the first token of every response.

use std::collections::HashMap;

use slime_record::{Sample, SampleId};

use crate::micro_batch::{MicroBatch, Rows};
use crate::partition::{Sizes, balance, first_fit, halves};
use crate::{Error, Result};

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
    prompt_len: usize,
    /// Samples, each with the response tokens that are fed of it.
    samples: Vec<(usize, usize)>,
}

impl Unit {
    fn num_tokens(&self) -> usize {
        self.prompt_len + self.samples.iter().map(|(_, fed)| fed).sum::<usize>()
    }

    /// Two units of the same prompt, which is then computed for each.
    fn halves(&self) -> [Self; 2] {
        let fed: Vec<usize> = self.samples.iter().map(|(_, fed)| *fed).collect();
        let half = |items: Vec<usize>| items.into_iter().map(|item| self.samples[item]).collect();
        halves(&fed).map(|items| Self { prompt_len: self.prompt_len, samples: half(items) })
    }
}

/// What is not parted between micro-batches: a unit, or all units of a group that is kept.
type Bundle = Vec<Unit>;

fn num_tokens(bundle: &Bundle) -> usize {
    bundle.iter().map(Unit::num_tokens).sum()
}

/// The samples of each prompt as units of at most `max_tokens`, if one sample alone does not exceed it, in bundles.
/// Samples without a row are in none.
fn bundles(samples: &[&Sample], packing: Packing) -> Vec<Bundle> {
    let mut open: HashMap<&[u32], (usize, usize)> = HashMap::new();
    let mut bundles: Vec<Bundle> = Vec::new();
    let mut group = None;
    for (i, sample) in samples.iter().enumerate() {
        let is_kept = packing.keeps_groups && group == Some(group_of(sample));
        if packing.keeps_groups && !is_kept {
            open.clear();
        }
        let Some(fed) = packing.rows.num_fed(sample) else { continue };
        group = Some(group_of(sample));
        let prompt = sample.prompt_tokens();
        let unit = open.get(prompt).and_then(|(bundle, unit)| bundles.get_mut(*bundle)?.get_mut(*unit));
        match unit {
            Some(unit) if is_kept || unit.num_tokens() + fed <= packing.max_tokens => {
                unit.samples.push((i, fed));
                continue;
            }
            _ => {}
        }
        let unit = Unit { prompt_len: prompt.len(), samples: vec![(i, fed)] };
        match bundles.last_mut() {
            Some(bundle) if is_kept => bundle.push(unit),
            _ => bundles.push(vec![unit]),
        }
        let bundle = bundles.len() - 1;
        open.insert(prompt, (bundle, bundles[bundle].len() - 1));
    }
    bundles
}

fn group_of(sample: &Sample) -> (u64, u32) {
    (sample.step, sample.group)
}

/// Parts the heaviest bins until their number is a multiple of `num_ranks`: between bundles, or where no bin has several
/// of them, between samples of one prompt. Groups that are kept are not parted, so there may be too few bins.
fn align(bins: &mut Vec<Vec<Bundle>>, num_ranks: usize, keeps_groups: bool) {
    let load = |bin: &Vec<Bundle>| bin.iter().map(num_tokens).sum::<usize>();
    let heaviest = |bins: &[Vec<Bundle>], can_part: &dyn Fn(&Vec<Bundle>) -> bool| {
        let bins = bins.iter().enumerate().filter(|(_, bin)| can_part(bin));
        bins.max_by_key(|(at, bin)| (load(bin), *at)).map(|(at, _)| at)
    };
    while !bins.len().is_multiple_of(num_ranks) {
        let parted = if let Some(at) = heaviest(bins, &|bin| bin.len() > 1) {
            let costs: Vec<usize> = bins[at].iter().map(num_tokens).collect();
            let half = |items: Vec<usize>| items.into_iter().map(|item| bins[at][item].clone()).collect();
            Some((at, halves(&costs).map(half)))
        } else {
            let shares = |bin: &Vec<Bundle>| bin.iter().flatten().any(|unit| unit.samples.len() > 1);
            heaviest(bins, &|bin| !keeps_groups && shares(bin)).and_then(|at| {
                let unit = bins[at].first()?.first()?;
                Some((at, unit.halves().map(|unit| vec![vec![unit]])))
            })
        };
        let Some((at, [first, second])) = parted else { return };
        bins[at] = first;
        bins.push(second);
    }
}

/// Packs `samples` for each of `num_ranks`, as many micro-batches on every rank: bundles are packed first-fit, bins are parted
/// until they divide by the ranks, and balanced over them by `cost`. Where there is too little to part, ranks are idle in
/// their last micro-batches. Where groups are kept, samples of a group stand together in `samples`.
///
/// # Errors
/// A sample whose fields disagree, or a prompt of no tokens.
pub fn pack(
    samples: &[&Sample],
    packing: Packing,
    num_ranks: usize,
    cost: impl Fn(&MicroBatch) -> f64,
) -> Result<Vec<Vec<MicroBatch>>> {
    for sample in samples {
        check(sample, packing.rows)?;
    }
    let bundles = bundles(samples, packing);
    let costs: Vec<usize> = bundles.iter().map(num_tokens).collect();
    let bin = |items: Vec<usize>| items.into_iter().map(|item| bundles[item].clone()).collect();
    let mut bins: Vec<Vec<Bundle>> = first_fit(&costs, packing.max_tokens).into_iter().map(bin).collect();
    align(&mut bins, num_ranks, packing.keeps_groups);
    let mut batches: Vec<MicroBatch> =
        bins.iter().map(|bin| micro_batch(samples, bin, packing.rows)).collect();
    batches.resize_with(batches.len().next_multiple_of(num_ranks), MicroBatch::idle);
    let costs: Vec<u64> = batches.iter().map(|batch| cost(batch) as u64).collect();
    let of_rank = |items: Vec<usize>| items.into_iter().map(|item| batches[item].clone()).collect();
    Ok(balance(&costs, num_ranks, Sizes::Equal).into_iter().map(of_rank).collect())
}

/// The first sample that exceeds the budget of a micro-batch by itself, with the tokens that are fed of it.
pub fn first_longer(samples: &[&Sample], packing: Packing) -> Option<(SampleId, usize)> {
    let fed = |sample: &&Sample| Some(sample.prompt_tokens().len() + packing.rows.num_fed(sample)?);
    let longer = |sample: &&Sample| Some((sample.id(), fed(sample).filter(|num| *num > packing.max_tokens)?));
    samples.iter().find_map(longer)
}

fn micro_batch(samples: &[&Sample], bin: &[Bundle], rows: Rows) -> MicroBatch {
    let mut batch = MicroBatch::default();
    for unit in bin.iter().flatten() {
        let sharing: Vec<usize> = unit.samples.iter().map(|(sample, _)| *sample).collect();
        batch.push(samples, &sharing, rows);
    }
    batch
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

#[cfg(test)]
mod tests {
    use slime_model::Segment;

    use super::*;
    use crate::micro_batch::{Place, Source};

    fn by_tokens(batch: &MicroBatch) -> f64 {
        batch.tokens.len() as f64
    }

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
        pack(&samples, Packing { max_tokens, ..Packing::default() }, num_ranks, by_tokens).unwrap()
    }

    /// Of a response of one token nothing is fed, so its samples cost nothing beside their prompt.
    #[test]
    fn responses_of_one_token_are_parted_between_ranks() {
        let samples: Vec<Sample> = (0..6).map(|token| sample(&[1, 2], &[token], &[1])).collect();
        for num_ranks in 1..=8 {
            let ranks = packed(&samples, 100, num_ranks);
            let batches = || ranks.iter().flatten();
            assert!(batches().all(|batch| !batch.tokens.is_empty() && !batch.segments.is_empty()));
            assert_eq!(batches().map(|batch| batch.rows.len()).sum::<usize>(), 6);
            assert_eq!(batches().filter(|batch| !batch.rows.is_empty()).count(), num_ranks.min(6));
        }
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
        let batches = pack(&samples, packing, 1, by_tokens).unwrap().remove(0);
        assert_eq!(batches.len(), 2);
        assert_eq!(
            (batches[0].tokens.as_slice(), batches[0].rows.as_slice()),
            (&[1, 2, 3, 4][..], &[3, 1][..])
        );
        assert_eq!(batches[1].tokens, [1, 2, 5, 7, 8, 9]);
        assert_eq!(batches[1].rows, [2, 5]);
        assert_eq!(batches[1].places.iter().map(|place| place.sample).collect::<Vec<_>>(), [2, 3]);
        for num_ranks in [2, 3] {
            let ranks = pack(&samples, packing, num_ranks, by_tokens).unwrap();
            let rows = ranks.iter().map(|batches| batches.iter().map(|batch| batch.rows.len()).collect());
            let expected = [vec![vec![2], vec![2]], vec![vec![2], vec![2], vec![0]]];
            assert_eq!(rows.collect::<Vec<Vec<_>>>(), expected[num_ranks - 2]);
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
        let error = pack(&[&sample(&[], &[1], &[1])], Packing::default(), 1, by_tokens).unwrap_err();
        assert_eq!(error.to_string(), "sample 0/0/0.0.0: prompt_len: expected at least 1 token, got 0");
    }

    /// V10 of the reference: every sample has a prompt of its own, so each is a unit.
    #[test]
    fn micro_batches_of_ranks_are_those_of_the_public_implementation() {
        let lengths = [1usize, 2, 3, 4, 5, 7, 9, 10];
        // The last token is only predicted, so `len` of them are fed.
        let samples: Vec<Sample> = lengths
            .iter()
            .enumerate()
            .map(|(at, len)| sample(&[at as u32], &vec![at as u32; *len], &vec![1; *len]))
            .collect();
        // Hidden size 8, 2 heads of 4, width 16, 32 ids, 2 layers; a batch costs the sum over its samples.
        let of_length = |s: f64| 2.0 * (384.0 * s + 16.0 * s * s + 128.0 * s + 768.0 * s) + 512.0 * s;
        assert!((of_length(10.0) - 33_920.0).abs() < 0.5 && (of_length(20.0) - 74_240.0).abs() < 0.5);
        let numbers = |batch: &MicroBatch| {
            let firsts = batch.sources.iter().filter(|source| source.token == 0);
            firsts.map(|source| source.sample).collect::<Vec<usize>>()
        };
        let cost = |batch: &MicroBatch| numbers(batch).iter().map(|at| of_length(lengths[*at] as f64)).sum();
        let samples: Vec<&Sample> = samples.iter().collect();
        let of = |max_tokens, num_ranks| {
            let packing = Packing { max_tokens, ..Packing::default() };
            let ranks = pack(&samples, packing, num_ranks, cost).unwrap();
            let of_rank = |batches: Vec<MicroBatch>| batches.iter().map(numbers).collect::<Vec<_>>();
            ranks.into_iter().map(of_rank).collect::<Vec<_>>()
        };
        assert_eq!(of(10, 1)[0], [vec![0, 1, 2, 3], vec![4], vec![5], vec![6], vec![7]]);
        assert_eq!(of(10, 2), [[vec![5], vec![6], vec![2, 1]], [vec![3, 0], vec![4], vec![7]]]);
    }

    #[test]
    fn every_rank_has_as_many_micro_batches_and_prompts_are_parted_last() {
        let of_prompt = |prompt: u32, num: usize| {
            (0..num).map(move |at| sample(&[prompt; 3], &vec![9; at + 2], &vec![1; at + 2]))
        };
        let samples: Vec<Sample> = of_prompt(1, 4).chain(of_prompt(2, 4)).collect();
        let num_prompts = |batches: &[MicroBatch]| {
            batches.iter().flat_map(|batch| &batch.sources).filter(|source| source.token == 0).count()
        };
        for (num_ranks, expected) in [(1, 2), (2, 2), (4, 4), (8, 8), (9, 9)] {
            let ranks = packed(&samples, 100, num_ranks);
            assert!(ranks.iter().all(|batches| batches.len() == ranks[0].len()), "{num_ranks} ranks");
            assert_eq!(num_prompts(&ranks.concat()), expected, "{num_ranks} ranks");
            let rows: usize = ranks.iter().flatten().map(|batch| batch.rows.len()).sum();
            assert_eq!(rows, 2 * (2 + 3 + 4 + 5));
        }
    }

    #[test]
    fn a_sample_longer_than_the_budget_is_found() {
        let samples = [sample(&[1, 2], &[3, 4], &[1, 1]), sample(&[1, 2], &[3, 4, 5, 6], &[1; 4])];
        let samples: Vec<&Sample> = samples.iter().collect();
        let longer = |max_tokens| first_longer(&samples, Packing { max_tokens, ..Packing::default() });
        assert_eq!(longer(5), None);
        assert_eq!(longer(4).map(|(_, num)| num), Some(5));
    }
}
