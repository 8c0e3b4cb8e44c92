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

/// One forward pass. Row r of the output is a trained token: `places[r]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// The tokens that are fed, `[t]`.
    pub tokens: Vec<i64>,
    /// Who sees whom.
    pub segments: Vec<Segment>,
    /// For each trained token, the fed token whose hidden state predicts it, `[r]`.
    pub rows: Vec<i64>,
    /// The trained tokens, `[r]`.
    pub targets: Vec<i64>,
    /// Where they belong, `[r]`.
    pub places: Vec<Place>,
}

/// A prompt with some of the responses to it: what shares one computation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    samples: Vec<usize>,
    num_tokens: usize,
}

/// Response tokens that must be predicted: up to the last trained one.
fn trained_len(sample: &Sample) -> usize {
    sample.loss_mask.iter().rposition(|mask| *mask != 0).map_or(0, |last| last + 1)
}

/// Splits the samples of each prompt into units of at most `max_tokens`, if one sample alone does not exceed it.
/// Samples without a trained token are in no unit.
fn units(samples: &[Sample], max_tokens: usize) -> Vec<Unit> {
    let mut open: HashMap<&[u32], usize> = HashMap::new();
    let mut units: Vec<Unit> = Vec::new();
    for (i, sample) in samples.iter().enumerate() {
        let Some(more) = trained_len(sample).checked_sub(1) else { continue };
        let prompt = sample.prompt_tokens();
        match open.get(prompt).map(|at| &mut units[*at]) {
            Some(unit) if unit.num_tokens + more <= max_tokens => {
                unit.samples.push(i);
                unit.num_tokens += more;
            }
            _ => {
                open.insert(prompt, units.len());
                units.push(Unit { samples: vec![i], num_tokens: prompt.len() + more });
            }
        }
    }
    units
}

/// Packs `samples` for each of `num_ranks`: units are balanced over the ranks by tokens, then packed first-fit.
///
/// # Errors
/// A sample whose fields disagree, or a prompt of no tokens.
pub fn pack(samples: &[Sample], max_tokens: usize, num_ranks: usize) -> Result<Vec<Vec<MicroBatch>>> {
    for sample in samples {
        check(sample)?;
    }
    let units = units(samples, max_tokens);
    let costs: Vec<usize> = units.iter().map(|unit| unit.num_tokens).collect();
    let rank_batches = |items: Vec<usize>| {
        let costs: Vec<usize> = items.iter().map(|item| costs[*item]).collect();
        let bins = first_fit(&costs, max_tokens);
        bins.into_iter().map(|bin| micro_batch(samples, bin.iter().map(|at| &units[items[*at]]))).collect()
    };
    Ok(balance(&costs, num_ranks).into_iter().map(rank_batches).collect())
}

fn check(sample: &Sample) -> Result<()> {
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
    if sample.prompt_len == 0 && trained_len(sample) > 0 {
        return Err(wrong("prompt_len", "at least 1 token".to_owned(), 0));
    }
    Ok(())
}

fn micro_batch<'a>(samples: &[Sample], units: impl Iterator<Item = &'a Unit>) -> MicroBatch {
    let mut batch =
        MicroBatch { tokens: vec![], segments: vec![], rows: vec![], targets: vec![], places: vec![] };
    for unit in units {
        let Some(prompt) = unit.samples.first().map(|first| samples[*first].prompt_tokens()) else {
            continue;
        };
        let prefix = (batch.tokens.len(), prompt.len());
        batch.segments.push(Segment::alone(prefix.0, prefix.1));
        batch.tokens.extend(prompt.iter().map(|token| i64::from(*token)));
        for &i in &unit.samples {
            batch.push_response(prefix, i, &samples[i]);
        }
    }
    batch
}

impl MicroBatch {
    fn push_response(&mut self, prefix: (usize, usize), i: usize, sample: &Sample) {
        let start = self.tokens.len();
        let trained = &sample.response_tokens()[..trained_len(sample)];
        // The last trained token is only predicted, never fed.
        let fed = &trained[..trained.len() - 1];
        if !fed.is_empty() {
            self.segments.push(Segment::after(prefix, start, fed.len()));
            self.tokens.extend(fed.iter().map(|token| i64::from(*token)));
        }
        for (token, target) in trained.iter().enumerate().filter(|(token, _)| sample.loss_mask[*token] != 0) {
            let row = if token == 0 { prefix.0 + prefix.1 - 1 } else { start + token - 1 };
            self.rows.push(row as i64);
            self.targets.push(i64::from(*target));
            self.places.push(Place { sample: i, token });
        }
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

    #[test]
    fn shared_prompt_is_fed_once() {
        let samples = [sample(&[1, 2], &[3, 4, 5], &[1, 1, 1]), sample(&[1, 2], &[6], &[1])];
        let batches = pack(&samples, 100, 1).unwrap();
        let batch = &batches[0][0];
        assert_eq!(batch.tokens, [1, 2, 3, 4]);
        assert_eq!(batch.segments, [Segment::alone(0, 2), Segment::after((0, 2), 2, 2)]);
        assert_eq!(batch.rows, [1, 2, 3, 1]);
        assert_eq!(batch.targets, [3, 4, 5, 6]);
        assert_eq!(batch.places[3], Place { sample: 1, token: 0 });
    }

    #[test]
    fn masked_tokens_have_no_row_and_a_masked_tail_is_not_fed() {
        let samples = [sample(&[1], &[2, 3, 4, 5], &[0, 1, 0, 0]), sample(&[1], &[7], &[0])];
        let batches = pack(&samples, 100, 1).unwrap();
        assert_eq!((batches[0][0].tokens.as_slice(), batches[0][0].rows.as_slice()), (&[1, 2][..], &[1][..]));
        assert_eq!(batches[0][0].targets, [3]);
    }

    #[test]
    fn budget_splits_a_group_and_a_longer_sample_stands_alone() {
        let samples: Vec<Sample> = (0..4).map(|_| sample(&[1, 2, 3], &[4, 5, 6], &[1; 3])).collect();
        let batches = pack(&samples, 7, 1).unwrap();
        assert_eq!(batches[0].iter().map(|batch| batch.tokens.len()).collect::<Vec<_>>(), [7, 7]);
        assert_eq!(pack(&samples, 2, 1).unwrap()[0].len(), 4);
    }

    #[test]
    fn ranks_share_every_sample_once() {
        let samples: Vec<Sample> =
            (1..10u32).map(|n| sample(&[n], &vec![n; n as usize], &vec![1; n as usize])).collect();
        let batches = pack(&samples, 16, 3).unwrap();
        let mut seen: Vec<usize> =
            batches.iter().flatten().flat_map(|b| b.places.iter().map(|p| p.sample)).collect();
        assert_eq!(seen.len(), 45);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn empty_prompt_is_refused() {
        let error = pack(&[sample(&[], &[1], &[1])], 9, 1).unwrap_err();
        assert_eq!(error.to_string(), "sample 0/0/0.0.0: prompt_len: expected at least 1 token, got 0");
    }
}
