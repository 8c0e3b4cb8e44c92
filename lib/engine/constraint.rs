//! What a response must look like: which tokens may come next, told by a grammar that the caller brings.

use std::fmt;
use std::sync::Arc;

/// A language that responses are kept to. One grammar serves any number of samples.
pub trait Grammar: Send + Sync {
    /// The state of a response without tokens.
    fn begin(&self) -> Box<dyn GrammarState>;
}

/// Where one response stands in its grammar.
pub trait GrammarState: Send + Sync {
    /// The tokens that may come next: token `t` is bit `t % 32` of word `t / 32`; words that are not there are zeros.
    /// `None` when the grammar cannot go on, which ends the response as aborted.
    fn allowed(&mut self) -> Option<&[u32]>;

    /// `token` came next.
    fn accept(&mut self, token: u32);

    /// Whether the response is complete, so that nothing may follow.
    fn is_complete(&self) -> bool;
}

/// A grammar as a parameter of sampling; equal is the same one.
#[derive(Clone)]
pub struct Constraint(pub Arc<dyn Grammar>);

impl fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Constraint")
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Takes the tokens that are not allowed out of a row of logits; false when none is left.
pub(crate) fn mask(logits: &mut [f32], allowed: &[u32]) -> bool {
    let mut is_any = false;
    for (i, chunk) in logits.chunks_mut(32).enumerate() {
        let word = allowed.get(i).copied().unwrap_or(0);
        for (bit, logit) in chunk.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            } else {
                is_any = true;
            }
        }
    }
    is_any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_leaves_the_allowed_tokens_and_says_when_there_are_none() {
        let mut logits = vec![1.0; 40];
        assert!(mask(&mut logits, &[1 << 3, 1 << 2]));
        let left: Vec<usize> = (0..40).filter(|&i| logits[i].is_finite()).collect();
        assert_eq!(left, [3, 34]);
        assert!(!mask(&mut logits, &[]));
        assert!(!mask(&mut [1.0; 3], &[1 << 3]), "bits beyond the vocabulary allow nothing");
    }
}
