//! The softmax of one row of logits without its division: weights `exp((logit - max) / temperature)` and their sums.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use slime_torch::simd::{Kernel, dispatch, exp};

/// Weights summed in f32 before f64 takes over.
pub(crate) const CHUNK_LEN: usize = 256;

const LANES: usize = 16;

/// The largest logit of a row; `None` when that is not finite, or any logit is NaN.
pub(crate) fn max(logits: &[f32]) -> Option<f32> {
    let (mut max, mut has_nan) = (f32::NEG_INFINITY, false);
    dispatch(Max { logits, found: &mut max, has_nan: &mut has_nan });
    (max.is_finite() && !has_nan).then_some(max)
}

/// Fills `weights` with `exp((logit - max) * inverse)`, where `inverse` is 1 / temperature, and `sums` with the sum of
/// every [`CHUNK_LEN`] of them; returns the sum of all.
pub(crate) fn weigh(
    logits: &[f32],
    max: f32,
    inverse: f32,
    weights: &mut Vec<f32>,
    sums: &mut Vec<f32>,
) -> f64 {
    weights.resize(logits.len(), 0.0);
    sums.clear();
    dispatch(Weigh { logits, max, inverse, weights, sums });
    sums.iter().map(|&sum| f64::from(sum)).sum()
}

struct Max<'a> {
    logits: &'a [f32],
    found: &'a mut f32,
    has_nan: &'a mut bool,
}

impl Kernel for Max<'_> {
    #[inline(always)]
    fn run(self) {
        let mut largest = [f32::NEG_INFINITY; LANES];
        let mut num_nan = [0.0f32; LANES];
        let (chunks, rest) = self.logits.as_chunks::<LANES>();
        for chunk in chunks {
            for ((largest, num_nan), &x) in largest.iter_mut().zip(&mut num_nan).zip(chunk) {
                *largest = if x > *largest { x } else { *largest };
                *num_nan += if x.is_nan() { 1.0 } else { 0.0 };
            }
        }
        *self.found =
            largest.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
        *self.has_nan = num_nan.iter().any(|&count| count > 0.0) || rest.iter().any(|x| x.is_nan());
    }
}

struct Weigh<'a> {
    logits: &'a [f32],
    max: f32,
    inverse: f32,
    weights: &'a mut [f32],
    sums: &'a mut Vec<f32>,
}

impl Kernel for Weigh<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { max, inverse, .. } = self;
        for (weights, logits) in self.weights.chunks_mut(CHUNK_LEN).zip(self.logits.chunks(CHUNK_LEN)) {
            weights.iter_mut().zip(logits).for_each(|(weight, x)| *weight = exp((x - max) * inverse));
            let mut lanes = [0.0f32; LANES];
            let (chunks, rest) = weights.as_chunks::<LANES>();
            for chunk in chunks {
                lanes.iter_mut().zip(chunk).for_each(|(lane, weight)| *lane += weight);
            }
            self.sums.push(lanes.iter().chain(rest).sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_sums_are_those_of_the_definition() {
        for len in [1_usize, 15, 16, 300, 5000] {
            let logits: Vec<f32> = (0..len).map(|i| ((i * 7919 + 13) % 101) as f32 / 5.0 - 4.0).collect();
            let largest = max(&logits).unwrap();
            assert_eq!(largest.to_bits(), logits.iter().copied().fold(f32::NEG_INFINITY, f32::max).to_bits());
            let (mut weights, mut sums) = (vec![9.0; 40], vec![9.0]);
            let total = weigh(&logits, largest, 1.25, &mut weights, &mut sums);
            let exact: Vec<f64> = logits.iter().map(|&x| (f64::from(x - largest) * 1.25).exp()).collect();
            for (weight, exact) in weights.iter().zip(&exact) {
                assert!((f64::from(*weight) - exact).abs() < 1e-5 * exact);
            }
            assert_eq!((weights.len(), sums.len()), (len, len.div_ceil(CHUNK_LEN)));
            assert!((total - exact.iter().sum::<f64>()).abs() < 1e-5 * total);
        }
    }

    #[test]
    fn a_single_bad_logit_anywhere_is_seen() {
        for bad in [f32::NAN, f32::INFINITY] {
            for at in [0, 17, 99] {
                let mut logits = vec![1.0; 100];
                logits[at] = bad;
                assert_eq!(max(&logits), None);
            }
        }
        assert_eq!(max(&[f32::NEG_INFINITY, 2.0]), Some(2.0));
        assert_eq!(max(&[]), None);
    }
}
