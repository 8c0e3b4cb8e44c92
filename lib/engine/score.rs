//! Log-probs of given tokens under the model, through the same paged cache that generates.

use crate::{Batch, Engine, Error, ForwardModel, Result, Scratch, softmax};

/// Rows of logits held at once.
const CHUNK_LEN: usize = 256;

impl<M: ForwardModel> Engine<M> {
    /// `log softmax(logits / temperature)` of `tokens[1..]`, each given the tokens before it. The engine must be
    /// idle. `id` names the row in errors.
    ///
    /// # Errors
    /// Empty rows, tokens outside the vocabulary, rows longer than context or cache, logits that are not finite.
    pub fn score(&mut self, id: u64, tokens: &[u32], temperature: f64) -> Result<Vec<f32>> {
        self.check_tokens(id, tokens)?;
        if tokens.len() > self.context_len() {
            return Err(Error::PromptTooLong {
                id,
                prompt_len: tokens.len(),
                context_len: self.context_len(),
            });
        }
        let num_blocks = self.blocks().num_blocks();
        let mut table = Vec::new();
        if self.blocks().reserve(&mut table, 0, tokens.len()).is_none() {
            let needed = self.blocks().blocks_for(tokens.len());
            return Err(Error::CacheTooSmall { id, needed, num_blocks });
        }
        let result = self.score_chunks(id, tokens, temperature, &table);
        self.blocks().release(&mut table);
        result
    }

    fn score_chunks(&mut self, id: u64, tokens: &[u32], temperature: f64, table: &[u32]) -> Result<Vec<f32>> {
        let block_size = self.blocks().block_size();
        let (mut log_probs, mut scratch) = (Vec::with_capacity(tokens.len()), Scratch::default());
        // The last token predicts nothing that is asked for.
        let last = tokens.len() - 1;
        for start in (0..last).step_by(CHUNK_LEN) {
            let len = CHUNK_LEN.min(last - start);
            let mut batch = Batch::default();
            batch.push(tokens, start, len, table, block_size);
            batch.logit_rows = (0..len as u32).collect();
            self.model.forward(&batch, &mut self.logits)?;
            for (i, row) in self.logits.chunks_exact(self.model.vocab_size()).enumerate() {
                let position = start + i + 1;
                let log_prob = log_softmax(row, tokens[position], temperature, &mut scratch);
                if !log_prob.is_finite() {
                    return Err(Error::NonFiniteLogits { id, index: 0, position });
                }
                log_probs.push(log_prob);
            }
        }
        Ok(log_probs)
    }
}

/// `log softmax(logits / temperature)[token]`; NaN when the logits are not finite.
fn log_softmax(logits: &[f32], token: u32, temperature: f64, scratch: &mut Scratch) -> f32 {
    let inverse = (1.0 / temperature) as f32;
    let Some(max) = softmax::max(logits) else {
        return f32::NAN;
    };
    let total = softmax::weigh(logits, max, inverse, &mut scratch.weights, &mut scratch.sums);
    ((f64::from(logits[token as usize]) - f64::from(max)) * f64::from(inverse) - total.ln()) as f32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::naive_model::NaiveModel;
    use crate::{EngineConfig, Request, SamplingParams};

    use super::*;

    fn engine() -> Engine<NaiveModel> {
        Engine::new(NaiveModel::default(), Arc::new(|_: &[u32]| String::new()), &EngineConfig::default(), 0)
            .unwrap()
    }

    #[test]
    fn score_gives_back_the_log_probs_of_sampling() {
        let mut engine = engine();
        let params = SamplingParams { temperature: 0.8, max_new_tokens: 20, ..Default::default() };
        engine.submit(Request { id: 1, tokens: vec![3, 1, 4, 1, 5], params }).unwrap();
        let mut done = Vec::new();
        while !engine.is_idle() {
            done.extend(engine.step().unwrap());
        }
        let tokens: Vec<u32> = [3, 1, 4, 1, 5].iter().chain(&done[0].tokens).copied().collect();
        let log_probs = engine.score(1, &tokens, 0.8).unwrap();
        assert_eq!(log_probs.len(), tokens.len() - 1);
        assert_eq!(log_probs[4..], done[0].log_probs);
    }

    #[test]
    fn one_token_has_no_log_prob_and_none_is_an_error() {
        let mut engine = engine();
        assert_eq!(engine.score(0, &[3], 1.0).unwrap(), Vec::<f32>::new());
        assert!(engine.score(0, &[], 1.0).is_err());
        assert!(engine.score(0, &[0; 65], 1.0).is_err());
    }
}
