//! What a caller does with samples on their way: sees their tokens, ends single ones, keeps them to a grammar.

use rayon::prelude::*;

use super::Engine;
use crate::{Completion, FinishReason, ForwardModel, constraint};

/// A token as it was sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct NewToken {
    /// The request.
    pub id: u64,
    /// Which of its samples.
    pub index: u32,
    /// The token.
    pub token: u32,
    /// Its log-prob under the distribution it was drawn from.
    pub log_prob: f32,
    /// The most likely tokens, as many as `top_log_probs` asks for, with their log-probs after temperature and before
    /// truncation.
    pub top: Vec<(u32, f32)>,
}

impl<M: ForwardModel> Engine<M> {
    /// From now on tokens are kept as they are sampled until they are taken.
    pub fn keep_tokens(&mut self) {
        self.new_tokens.get_or_insert_default();
    }

    /// The tokens sampled since the last call, in the order of their steps.
    pub fn take_tokens(&mut self) -> Vec<NewToken> {
        self.new_tokens.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends sample `index` of request `id` where it is and returns it, if it is not finished.
    pub fn abort_sample(&mut self, id: u64, index: u32) -> Option<Completion> {
        let taken = self.scheduler.take(|s| s.request.id == id && s.index == index);
        taken.into_iter().next().map(|sequence| self.complete(sequence))
    }

    /// Entries of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    /// Token slots of the cache.
    pub fn num_slots(&mut self) -> usize {
        self.blocks().num_blocks() * self.blocks().block_size()
    }

    /// Puts all running samples back in the queue with the tokens they have; no block of the cache is in use then.
    pub fn retract(&mut self) {
        self.scheduler.preempt_all();
    }

    /// Takes out of each row of logits what the sample's grammar does not allow; a sample whose grammar cannot go on
    /// ends here.
    pub(super) fn constrain(&mut self) {
        let mut rows = self.logits.chunks_exact_mut(self.model.vocab_size());
        // What a grammar binds is never guessed, so it has one row.
        let bound: Vec<_> = self
            .scheduler
            .sampled_mut()
            .filter_map(|sequence| Some((rows.nth(sequence.num_draws() - 1)?, sequence)))
            .filter(|(_, sequence)| sequence.grammar.is_some())
            .collect();
        bound.into_par_iter().for_each(|(row, sequence)| {
            let Some(grammar) = &mut sequence.grammar else { return };
            if !grammar.allowed().is_some_and(|allowed| constraint::mask(row, allowed)) {
                sequence.finish = Some(FinishReason::Abort);
                row.fill(0.0);
            }
        });
    }
}
