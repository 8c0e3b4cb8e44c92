//! The most likely tokens of one row of logits.

use crate::{Scratch, softmax};

/// The `num` most likely tokens (ties by token) with `log softmax(logits / temperature)`; at temperature 0 that of the
/// logits themselves. Tokens without any probability are left out, and all when the logits are not finite.
pub(crate) fn top_log_probs(
    logits: &[f32],
    temperature: f64,
    num: usize,
    scratch: &mut Scratch,
) -> Vec<(u32, f32)> {
    let Some(max) = softmax::max(logits).filter(|_| num > 0) else {
        return Vec::new();
    };
    let inverse = if temperature <= 0.0 { 1.0 } else { 1.0 / temperature } as f32;
    let total = softmax::weigh(logits, max, inverse, &mut scratch.weights, &mut scratch.sums);
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut tokens: Vec<u32> =
        (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
    if num < tokens.len() {
        tokens.select_nth_unstable_by(num - 1, order);
        tokens.truncate(num);
    }
    tokens.sort_unstable_by(order);
    let log_prob = |token: u32| {
        let shifted = f64::from(logits[token as usize]) - f64::from(max);
        (shifted * f64::from(inverse) - total.ln()) as f32
    };
    tokens.into_iter().map(|token| (token, log_prob(token))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_come_first_with_their_log_probs() {
        let logits = [0.0, 2.0, f32::NEG_INFINITY, 2.0, 1.0];
        let mut scratch = Scratch::default();
        let sum: f64 = [0.0_f64, 4.0, 4.0, 2.0].iter().map(|x| x.exp()).sum();
        let top = top_log_probs(&logits, 0.5, 3, &mut scratch);
        let tokens: Vec<u32> = top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 3, 4]);
        for ((_, log_prob), exact) in top.iter().zip([4.0, 4.0, 2.0]) {
            assert!((f64::from(*log_prob) - (exact - sum.ln())).abs() < 1e-6);
        }
        assert_eq!(top_log_probs(&logits, 1.0, 9, &mut scratch).len(), 4);
        assert!(top_log_probs(&logits, 1.0, 0, &mut scratch).is_empty());
        assert!(top_log_probs(&[f32::NAN], 1.0, 1, &mut scratch).is_empty());
    }
}
