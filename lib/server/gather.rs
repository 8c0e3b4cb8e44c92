//! Events of a job put together: its prompt and its samples, as far as they are known.

use std::sync::atomic::Ordering;

use slime_tokenizer::Tokenizer;

use crate::job::Event;
use crate::text::{Assembler, Sample, TextRules};
use crate::{ApiResult, Running, Status};

/// Log-probs of a prompt's tokens after the first.
#[derive(Debug, Default)]
pub struct PromptLogProbs {
    /// One for each token after the first.
    pub log_probs: Vec<f32>,
    /// The most likely tokens in their places; empty unless they were asked for.
    pub top: Vec<Vec<(u32, f32)>>,
}

/// What is known of a job.
pub struct Gathering<'a> {
    /// The prompt's log-probs, where they were asked for and are there.
    pub prompt: Option<PromptLogProbs>,
    assemblers: Vec<Assembler<'a>>,
    num_left: usize,
    has_token: bool,
}

impl<'a> Gathering<'a> {
    /// Nothing is known of `num_samples` samples.
    pub fn new(tokenizer: &'a Tokenizer, rules: &'a TextRules, num_samples: usize) -> Self {
        let assemblers = (0..num_samples).map(|_| Assembler::new(tokenizer, rules)).collect();
        Self { prompt: None, assemblers, num_left: num_samples, has_token: false }
    }

    /// Takes what happened; returns whose text grew, or whose sample ended, and by what.
    ///
    /// # Errors
    /// The tokenizer refuses a token.
    pub fn take(
        &mut self,
        event: Event,
        run: &mut Running,
        status: &Status,
    ) -> ApiResult<Option<(usize, String)>> {
        match event {
            Event::Prompt { log_probs, top } => {
                self.prompt = Some(PromptLogProbs { log_probs, top });
                Ok(None)
            }
            Event::Token(token) => {
                if !std::mem::replace(&mut self.has_token, true) {
                    status.first_token.add(run.arrived.elapsed().as_secs_f64());
                }
                let index = token.index as usize;
                let Some(assembler) = self.assemblers.get_mut(index) else { return Ok(None) };
                Ok(Some((index, assembler.token(token)?)))
            }
            Event::Done { completion, weight_version } => {
                let index = completion.index as usize;
                status.num_cached_tokens.fetch_add(completion.num_cached as u64, Ordering::Relaxed);
                let Some(assembler) = self.assemblers.get_mut(index) else { return Ok(None) };
                let delta = assembler.done(completion, weight_version)?;
                self.num_left -= 1;
                if self.num_left == 0 {
                    run.finish();
                    status.whole.add(run.arrived.elapsed().as_secs_f64());
                }
                Ok(Some((index, delta)))
            }
            // `Running` has made it an error.
            Event::Failed(error) => Err(error),
        }
    }

    /// Whether all samples have ended.
    pub fn is_over(&self) -> bool {
        self.num_left == 0
    }

    /// Sample `index` as far as it is known.
    pub fn sample(&self, index: usize) -> Option<&Sample> {
        self.assemblers.get(index).map(|assembler| &assembler.sample)
    }

    /// All samples as far as they are known.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.assemblers.iter().map(|assembler| &assembler.sample)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The job has failed.
    pub async fn wait(&mut self, run: &mut Running, status: &Status) -> ApiResult<()> {
        while !self.is_over() {
            let event = run.next().await?;
            self.take(event, run, status)?;
        }
        Ok(())
    }
}
