//! Log-probs of given tokens under the model, through the same paged cache that generates.

use crate::top_log_probs::top_log_probs;
use crate::{Batch, Engine, Error, ForwardModel, Result, Scratch, softmax};

/// Rows of logits held at once.
const CHUNK_LEN: usize = 256;

/// Tokens on their way through the model, chunk by chunk, between steps of the engine.
#[derive(Debug)]
pub struct Scoring {
    id: u64,
    tokens: Vec<u32>,
    temperature: f64,
    num_top: usize,
    table: Vec<u32>,
    num_computed: usize,
    log_probs: Vec<f32>,
    top: Vec<Vec<(u32, f32)>>,
}

impl Scoring {
    /// `log softmax(logits / temperature)` of `tokens[1..]`, each given the tokens before it, with the `num_top` most
    /// likely tokens in their places. `id` names the row in errors.
    pub fn new(id: u64, tokens: Vec<u32>, temperature: f64, num_top: usize) -> Self {
        let (table, log_probs, top) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, tokens, temperature, num_top, table, num_computed: 0, log_probs, top }
    }

    /// The caller's name of it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// One for each token after the first, as far as they are computed.
    pub fn log_probs(&self) -> &[f32] {
        &self.log_probs
    }

    /// The most likely tokens in the place of each token after the first.
    pub fn top(&self) -> &[Vec<(u32, f32)>] {
        &self.top
    }

    /// Forgets what is computed (the weights have changed).
    pub fn restart(&mut self) {
        self.num_computed = 0;
        self.log_probs.clear();
        self.top.clear();
    }

    /// The last token predicts nothing that is asked for.
    fn num_wanted(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }
}

impl<M: ForwardModel> Engine<M> {
    /// `log softmax(logits / temperature)` of `tokens[1..]`, each given the tokens before it. `id` names the row in
    /// errors.
    ///
    /// # Errors
    /// Empty rows, tokens outside the vocabulary, rows longer than context or cache, logits that are not finite.
    pub fn score(&mut self, id: u64, tokens: &[u32], temperature: f64) -> Result<Vec<f32>> {
        let mut scoring = Scoring::new(id, tokens.to_vec(), temperature, 0);
        self.check_scoring(&scoring)?;
        if !self.begin_scoring(&mut scoring) {
            return Err(self.too_small(&scoring));
        }
        let mut result = Ok(false);
        while matches!(result, Ok(false)) {
            result = self.continue_scoring(&mut scoring);
        }
        self.end_scoring(&mut scoring);
        result.map(|_| scoring.log_probs)
    }

    /// Refuses what can never be scored.
    ///
    /// # Errors
    /// Empty rows, tokens outside the vocabulary, rows longer than context or cache.
    pub fn check_scoring(&mut self, scoring: &Scoring) -> Result<()> {
        let Scoring { id, tokens, .. } = scoring;
        self.check_tokens(*id, tokens)?;
        if tokens.len() > self.context_len() {
            let (prompt_len, context_len) = (tokens.len(), self.context_len());
            return Err(Error::PromptTooLong { id: *id, prompt_len, context_len });
        }
        if self.blocks().blocks_for(tokens.len()) > self.blocks().num_blocks() {
            return Err(self.too_small(scoring));
        }
        Ok(())
    }

    /// Takes the blocks it needs; false when they are not free at the moment.
    pub fn begin_scoring(&mut self, scoring: &mut Scoring) -> bool {
        self.blocks().reserve(&mut scoring.table, 0, scoring.tokens.len()).is_some()
    }

    /// Computes the next chunk; true when all is computed.
    ///
    /// # Errors
    /// What the model says, and logits that are not finite.
    pub fn continue_scoring(&mut self, scoring: &mut Scoring) -> Result<bool> {
        let (start, block_size) = (scoring.num_computed, self.blocks().block_size());
        let len = CHUNK_LEN.min(scoring.num_wanted() - start);
        if len == 0 {
            return Ok(true);
        }
        let mut batch = Batch::default();
        batch.push((&scoring.tokens, &[]), start, len, &scoring.table, block_size);
        batch.logit_rows = (0..len as u32).collect();
        self.model.forward(&batch, &mut self.logits)?;
        let (temperature, mut scratch) = (scoring.temperature, Scratch::default());
        for (i, row) in self.logits.chunks_exact(self.model.vocab_size()).enumerate() {
            let position = start + i + 1;
            let log_prob = log_softmax(row, scoring.tokens[position], temperature, &mut scratch);
            if !log_prob.is_finite() {
                return Err(Error::NonFiniteLogits { id: scoring.id, index: 0, position });
            }
            scoring.log_probs.push(log_prob);
            if scoring.num_top > 0 {
                scoring.top.push(top_log_probs(row, temperature, scoring.num_top, &mut scratch));
            }
        }
        scoring.num_computed += len;
        Ok(scoring.num_computed == scoring.num_wanted())
    }

    /// Gives its blocks back.
    pub fn end_scoring(&mut self, scoring: &mut Scoring) {
        self.blocks().release(&mut scoring.table);
    }

    fn too_small(&mut self, scoring: &Scoring) -> Error {
        let (needed, num_blocks) =
            (self.blocks().blocks_for(scoring.tokens.len()), self.blocks().num_blocks());
        Error::CacheTooSmall { id: scoring.id, needed, num_blocks }
    }
}

/// `log softmax(logits / temperature)[token]`, at temperature 0 that of the logits; NaN when they are not finite.
fn log_softmax(logits: &[f32], token: u32, temperature: f64, scratch: &mut Scratch) -> f32 {
    let inverse = if temperature <= 0.0 { 1.0 } else { 1.0 / temperature } as f32;
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
    fn scoring_between_steps_disturbs_nobody_and_gives_its_blocks_back() {
        let mut engine = engine();
        let params = SamplingParams { max_new_tokens: 20, ..Default::default() };
        engine.submit(Request { id: 1, tokens: vec![3, 1, 4], params: params.clone() }).unwrap();
        let alone = {
            let mut other = self::engine();
            other.submit(Request { id: 1, tokens: vec![3, 1, 4], params }).unwrap();
            while !other.is_idle() {
                if let Some(done) = other.step().unwrap().pop() {
                    assert!(other.is_idle(), "{done:?}");
                }
            }
            other.usage().num_sampled_tokens
        };
        let mut scoring = Scoring::new(2, vec![7; 40], 1.0, 2);
        engine.step().unwrap();
        engine.check_scoring(&scoring).unwrap();
        assert!(engine.begin_scoring(&mut scoring));
        engine.step().unwrap();
        assert!(engine.continue_scoring(&mut scoring).unwrap());
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        assert_eq!(engine.usage().num_sampled_tokens, alone);
        assert_eq!((scoring.log_probs().len(), scoring.top().len()), (39, 39));
        let top = &scoring.top()[5];
        assert!(top.len() == 2 && top[0].1 >= top[1].1 && scoring.log_probs()[5] <= top[0].1 + 1e-6);
        let before = scoring.log_probs().to_vec();
        scoring.restart();
        assert!(engine.continue_scoring(&mut scoring).unwrap());
        assert_eq!(scoring.log_probs(), before);
        engine.end_scoring(&mut scoring);
        assert_eq!(engine.blocks().num_free(), engine.blocks().num_blocks());
    }

    #[test]
    fn one_token_has_no_log_prob_and_none_is_an_error() {
        let mut engine = engine();
        assert_eq!(engine.score(0, &[3], 1.0).unwrap(), Vec::<f32>::new());
        assert!(engine.score(0, &[], 1.0).is_err());
        assert!(engine.score(0, &[0; 65], 1.0).is_err());
    }
}
