//! Draws one token from one row of logits, with its exact log-prob under the distribution drawn from.

use std::cmp::Ordering;

use crate::{SamplingParams, softmax};

/// Candidates sorted before the whole vocabulary is, when top-p alone truncates.
const FIRST_SORTED: usize = 1024;

/// A token and the logarithm of the probability it was drawn with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-prob after temperature and truncation; at temperature 0 that of the untouched softmax,
    /// since the greedy distribution gives every choice 0.
    pub log_prob: f32,
    /// The tokens it was drawn from, in their order, where `params.keeps_ids` and truncation left some out; else empty.
    pub kept: Vec<u32>,
}

/// For each response token the tokens that truncation (top-k, top-p, min-p) left to its choice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptIds {
    /// How many there are for each response token; 0 where all were left.
    pub lens: Vec<u32>,
    /// The tokens, one list after the other.
    pub ids: Vec<u32>,
}

impl KeptIds {
    /// Takes the list of the next response token.
    pub(crate) fn push(&mut self, ids: &[u32]) {
        self.lens.push(ids.len() as u32);
        self.ids.extend_from_slice(ids);
    }
}

/// Memory that [`sample`] uses again from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) weights: Vec<f32>,
    /// Sums of the weights, chunk by chunk.
    pub(crate) sums: Vec<f32>,
}

/// Draws from `softmax(logits / temperature)` cut to top-k, then top-p of what is left, then min-p (the order of
/// Hugging Face's logits processors) and renormalised. `uniform` in [0, 1) decides.
/// `None` when the logits hold NaN or infinity.
pub fn sample(
    logits: &[f32],
    params: &SamplingParams,
    uniform: f64,
    scratch: &mut Scratch,
) -> Option<Sampled> {
    let max = softmax::max(logits)?;
    let greedy = params.temperature <= 0.0;
    let inverse = if greedy { 1.0 } else { 1.0 / params.temperature } as f32;
    let Scratch { weights, sums } = scratch;
    let total = softmax::weigh(logits, max, inverse, weights, sums);
    if !total.is_finite() {
        return None;
    }
    let sampled = |token: usize, total: f64| {
        let shifted = f64::from(logits[token]) - f64::from(max);
        let log_prob = (shifted * f64::from(inverse) - total.ln()) as f32;
        Some(Sampled { token: token as u32, log_prob, kept: Vec::new() })
    };
    if greedy {
        // The first of equals.
        return sampled(logits.iter().position(|&x| x >= max)?, total);
    }
    if params.keeps_all() {
        return sampled(draw_of_all(weights, sums, uniform * total)?, total);
    }
    let mut kept = truncate(weights, total, params);
    // In the order of the whole vocabulary, as a GPU draws.
    kept.sort_unstable();
    let kept_total: f64 = kept.iter().map(|&i| f64::from(weights[i as usize])).sum();
    let entries = kept.iter().map(|&i| (i as usize, weights[i as usize]));
    let drawn = sampled(draw(entries, 0.0, uniform * kept_total)?, kept_total)?;
    let is_recorded = params.keeps_ids && kept.len() < logits.len();
    Some(if is_recorded { Sampled { kept, ..drawn } } else { drawn })
}

/// The token at which the running sum passes `target`: first its chunk, by the sums, then its place there.
fn draw_of_all(weights: &[f32], sums: &[f32], target: f64) -> Option<usize> {
    let mut before = 0.0;
    let mut chosen = None;
    for (chunk, &sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        if let Some((_, end)) = chosen {
            before = end;
        }
        let end = before + f64::from(sum);
        chosen = Some((chunk, end));
        if end > target {
            break;
        }
    }
    let start = chosen?.0 * softmax::CHUNK_LEN;
    let entries = weights[start..].iter().take(softmax::CHUNK_LEN);
    draw(entries.enumerate().map(|(i, &weight)| (start + i, weight)), before, target)
}

/// The entry at which the running sum passes `target`; rounding at the end falls on the last possible one.
fn draw(entries: impl Iterator<Item = (usize, f32)>, mut sum: f64, target: f64) -> Option<usize> {
    let mut last = None;
    for (i, weight) in entries {
        sum += f64::from(weight);
        if weight > 0.0 {
            last = Some(i);
            if sum > target {
                break;
            }
        }
    }
    last
}

/// The tokens that stay, most likely first (ties by token).
fn truncate(weights: &[f32], total: f64, params: &SamplingParams) -> Vec<u32> {
    let order = |a: &u32, b: &u32| -> Ordering {
        weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b))
    };
    // The largest weight is exactly 1, so min-p compares with itself; it commutes with the other two cuts.
    let mut kept: Vec<u32> =
        (0..weights.len() as u32).filter(|&i| f64::from(weights[i as usize]) >= params.min_p).collect();
    let mut mass = total;
    if params.top_k > 0 && params.top_k < weights.len() {
        let mut top: Vec<u32> = (0..weights.len() as u32).collect();
        top.select_nth_unstable_by(params.top_k - 1, order);
        top.truncate(params.top_k);
        mass = top.iter().map(|&i| f64::from(weights[i as usize])).sum();
        if kept.len() > params.top_k {
            kept = top.into_iter().filter(|&i| f64::from(weights[i as usize]) >= params.min_p).collect();
        }
    }
    if params.top_p < 1.0 {
        return top_p(kept, weights, params.top_p * mass, order);
    }
    kept.sort_unstable_by(order);
    kept
}

/// The most likely tokens until their weights reach `target`; sorts only as much as it must.
fn top_p(
    mut kept: Vec<u32>,
    weights: &[f32],
    target: f64,
    order: impl Fn(&u32, &u32) -> Ordering,
) -> Vec<u32> {
    let reach = |sorted: &[u32]| {
        let mut sum = 0.0;
        sorted.iter().position(|&i| {
            sum += f64::from(weights[i as usize]);
            sum >= target
        })
    };
    if kept.len() > FIRST_SORTED {
        kept.select_nth_unstable_by(FIRST_SORTED - 1, &order);
        kept[..FIRST_SORTED].sort_unstable_by(&order);
        if let Some(last) = reach(&kept[..FIRST_SORTED]) {
            kept.truncate(last + 1);
            return kept;
        }
    }
    kept.sort_unstable_by(&order);
    if let Some(last) = reach(&kept) {
        kept.truncate(last + 1);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleSeed;

    /// The definition, written without regard to speed: probabilities of every token.
    fn reference(logits: &[f32], p: &SamplingParams) -> Vec<f64> {
        let exp: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / p.temperature).exp()).collect();
        let sum: f64 = exp.iter().sum();
        let mut probs: Vec<f64> = exp.iter().map(|e| e / sum).collect();
        let mut order: Vec<usize> = (0..probs.len()).collect();
        order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
        let renormalise = |probs: &mut Vec<f64>| {
            let sum: f64 = probs.iter().sum();
            for p in probs {
                *p /= sum;
            }
        };
        if p.top_k > 0 {
            for &i in order.iter().skip(p.top_k) {
                probs[i] = 0.0;
            }
            renormalise(&mut probs);
        }
        let mut before = 0.0;
        for &i in &order {
            let prob = probs[i];
            if before >= p.top_p {
                probs[i] = 0.0;
            }
            before += prob;
        }
        let max = probs.iter().copied().fold(0.0, f64::max);
        for prob in &mut probs {
            if *prob < p.min_p * max {
                *prob = 0.0;
            }
        }
        renormalise(&mut probs);
        probs
    }

    fn cases() -> Vec<SamplingParams> {
        let base = SamplingParams::default();
        vec![
            base.clone(),
            SamplingParams { temperature: 0.6, ..base.clone() },
            SamplingParams { top_k: 5, ..base.clone() },
            SamplingParams { top_p: 0.8, ..base.clone() },
            SamplingParams { min_p: 0.2, ..base.clone() },
            SamplingParams { temperature: 1.3, top_k: 8, top_p: 0.9, min_p: 0.1, ..base },
        ]
    }

    fn logits(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + 13) % 101) as f32 / 25.0).collect()
    }

    #[test]
    fn draws_follow_the_reference_distribution() {
        let logits = logits(16);
        let draws = 40_000;
        for params in cases() {
            let expected = reference(&logits, &params);
            let seed = SampleSeed { seed: 11, ..Default::default() };
            let mut counts = vec![0_u32; logits.len()];
            let mut weights = Scratch::default();
            for t in 0..draws {
                let sampled = sample(&logits, &params, seed.uniform(t), &mut weights).unwrap();
                counts[sampled.token as usize] += 1;
                let exact = expected[sampled.token as usize].ln();
                assert!((f64::from(sampled.log_prob) - exact).abs() < 1e-5, "{params:?}");
            }
            let mut chi_square = 0.0;
            for (&count, &p) in counts.iter().zip(&expected) {
                if p == 0.0 {
                    assert_eq!(count, 0, "a token cut off was drawn: {params:?}");
                } else {
                    let mean = p * draws as f64;
                    chi_square += (f64::from(count) - mean).powi(2) / mean;
                }
            }
            // 99.9 % quantile of chi-square with 15 degrees of freedom.
            assert!(chi_square < 37.7, "chi-square {chi_square} for {params:?}");
        }
    }

    #[test]
    fn large_vocabulary_keeps_the_same_tokens_as_the_reference() {
        let logits: Vec<f32> =
            (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 6e6).collect();
        for top_p in [0.3, 0.95, 0.999] {
            let params = SamplingParams { top_p, ..Default::default() };
            let expected = reference(&logits, &params);
            let mut weights = Scratch::default();
            for u in 0..200 {
                let sampled = sample(&logits, &params, f64::from(u) / 200.0, &mut weights).unwrap();
                let exact = expected[sampled.token as usize].ln();
                assert!((f64::from(sampled.log_prob) - exact).abs() < 1e-4, "top_p {top_p}");
            }
        }
    }

    #[test]
    fn draw_over_chunks_is_the_draw_over_all() {
        let logits: Vec<f32> = (0..3000_u32)
            .map(|i| if (500..1100).contains(&i) { -200.0 } else { ((i * 7919) % 101) as f32 / 25.0 })
            .collect();
        let mut scratch = Scratch::default();
        let total = softmax::weigh(&logits, 4.0, 1.0, &mut scratch.weights, &mut scratch.sums);
        for u in 0..1000 {
            let target = f64::from(u) / 1000.0 * total;
            let (weights, sums) = (&scratch.weights, &scratch.sums);
            let got = draw_of_all(weights, sums, target).unwrap();
            let running = |end: usize| weights[..end].iter().map(|&w| f64::from(w)).sum::<f64>();
            assert!(weights[got] > 0.0);
            let slack = 1e-6 * total;
            assert!(running(got) <= target + slack && running(got + 1) > target - slack, "{u}: {got}");
        }
        assert_eq!(draw_of_all(&scratch.weights, &scratch.sums, total * 2.0), Some(2999));
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_most_likely() {
        let params = SamplingParams { temperature: 0.0, ..Default::default() };
        let sampled = sample(&[0.0, 2.0, 2.0], &params, 0.9, &mut Scratch::default()).unwrap();
        assert_eq!(sampled.token, 1);
        let exact = (2_f64.exp() / (1.0 + 2.0 * 2_f64.exp())).ln();
        assert!((f64::from(sampled.log_prob) - exact).abs() < 1e-6);
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(sample(&[0.0, bad], &SamplingParams::default(), 0.5, &mut Scratch::default()), None);
        }
    }
}
