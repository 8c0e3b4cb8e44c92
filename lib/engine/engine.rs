//! The engine: requests in, completions out, one forward pass per step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use slime_record::VersionRun;

use crate::drafter::{Drafter, Drafting};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::{BlockManager, Decode, Error, FinishReason, ForwardModel, KeptIds, Result, SamplingParams};

/// Sizes of the cache and of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Token slots of one KV block.
    pub block_size: usize,
    /// KV blocks.
    pub num_blocks: usize,
    /// Sequences computed at once.
    pub max_num_seqs: usize,
    /// Tokens one forward pass computes at most; longer prompts go in chunks.
    pub max_batch_tokens: usize,
    /// Prompt and response together; `None` is what the model allows.
    pub context_len: Option<usize>,
    /// Tokens guessed at once at most, from n-grams that stood before in prompt, response and siblings; 0 guesses none. A model
    /// that could run ahead of the host does not do so where tokens are guessed.
    pub num_draft_tokens: usize,
    /// Whether a prompt that begins like an earlier one under the same weights takes that one's keys and values.
    pub prefix_cache: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            num_blocks: 2048,
            max_num_seqs: 64,
            max_batch_tokens: 1024,
            context_len: None,
            num_draft_tokens: 0,
            prefix_cache: true,
        }
    }
}

/// A prompt and how to sample from it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// The caller's name for it; comes back in each completion.
    pub id: u64,
    /// The prompt, with the response so far where a sample is continued.
    pub tokens: Vec<u32>,
    /// How to sample, and how many samples.
    pub params: SamplingParams,
}

/// One finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The request.
    pub id: u64,
    /// Which of its samples.
    pub index: u32,
    /// Response tokens as sampled, the stop token included.
    pub tokens: Vec<u32>,
    /// One per response token.
    pub log_probs: Vec<f32>,
    /// Which tokens truncation left to each of them, where the request asks for it.
    pub kept: KeptIds,
    /// The experts of every token of prompt and response but the last, `[tokens - 1, layers with experts, experts of a
    /// token]` row-major with 65535 where a token was not computed; empty unless the request asks for it and the model has
    /// experts.
    pub routed_experts: Vec<u16>,
    /// The response as text, without special tokens.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Which weights sampled which tokens, run-length.
    pub weight_versions: Vec<VersionRun>,
    /// Prompt tokens that were not computed for this sample, because the cache had them.
    pub num_cached: usize,
    /// What became of its guessed tokens.
    pub drafting: Drafting,
}

/// What becomes of cached keys and values when the weights change under running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvOnSwap {
    /// Compute them again under the new weights, so log-probs are exact for the version they carry.
    Recompute,
    /// Keep them and go on at once.
    Keep,
}

/// Counters since the engine was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Forward passes.
    pub num_steps: u64,
    /// Tokens that went through the model.
    pub num_computed_tokens: u64,
    /// Tokens sampled.
    pub num_sampled_tokens: u64,
    /// Sequences put back for want of blocks.
    pub num_preemptions: u64,
    /// Prompt tokens of finished samples, and those of them that the cache had.
    pub num_prompt_tokens: u64,
    /// See `num_prompt_tokens`.
    pub num_cached_tokens: u64,
    /// What became of the guessed tokens of finished samples.
    pub drafting: Drafting,
}

/// What an engine holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Sequences that are being computed.
    pub num_running: usize,
    /// Sequences that wait for room.
    pub num_waiting: usize,
    /// Share of the KV blocks in use.
    pub kv_used: f64,
}

/// When what happened to a finished sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The request.
    pub id: u64,
    /// Which of its samples.
    pub index: u32,
    /// It was queued.
    pub submitted: Instant,
    /// Its first step began.
    pub started: Instant,
    /// Its first token was sampled.
    pub first_token: Instant,
    /// Its last token was sampled.
    pub finished: Instant,
    /// Response tokens.
    pub num_tokens: usize,
}

/// Continuous batching over one model.
pub struct Engine<M> {
    pub(crate) model: M,
    decode: Arc<Decode>,
    scheduler: Scheduler,
    context_len: usize,
    /// Where tokens are guessed.
    drafter: Option<Drafter>,
    pub(crate) logits: Vec<f32>,
    version: u64,
    num_requests: u64,
    usage: Usage,
    num_steps: u64,
    /// Steps whose tokens were not taken yet, by number, oldest first.
    on_the_way: VecDeque<(u64, Arriving)>,
    /// Samples that have ended and were not returned yet, since their step failed for another one.
    ended: Vec<Sequence>,
    /// Of samples that finished since they were last taken; none unless they are asked for.
    timings: Option<Vec<Timing>>,
    /// Those sampled since they were last taken; none unless they are asked for.
    new_tokens: Option<Vec<NewToken>>,
}

impl<M: ForwardModel> Engine<M> {
    /// An engine around `model`, whose cache it allocates; `version` names the weights the model holds.
    ///
    /// # Errors
    /// What the model says when the cache does not fit.
    pub fn new(mut model: M, decode: Arc<Decode>, config: &EngineConfig, version: u64) -> Result<Self> {
        model.allocate(config.num_blocks, config.block_size, config.max_num_seqs.max(1))?;
        let blocks = BlockManager::new(config.num_blocks, config.block_size);
        let blocks = if config.prefix_cache { blocks.with_cache() } else { blocks };
        let longest = model.context_len();
        Ok(Self {
            model,
            decode,
            scheduler: Scheduler::new(blocks, config.max_num_seqs, config.max_batch_tokens),
            context_len: config.context_len.map_or(longest, |len| len.min(longest)),
            drafter: (config.num_draft_tokens > 0).then(|| Drafter::new(config.num_draft_tokens)),
            logits: Vec::new(),
            version,
            num_requests: 0,
            usage: Usage::default(),
            num_steps: 0,
            on_the_way: VecDeque::new(),
            ended: Vec::new(),
            timings: None,
            new_tokens: None,
        })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// Refuses, with the request's id, what could never be generated: an empty or too long prompt, tokens outside
    /// the vocabulary, parameters out of range, sequences longer than the cache.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        self.check(&request)?;
        let request = Arc::new(request);
        for index in 0..request.params.n {
            self.scheduler.add(Sequence::new(request.clone(), self.num_requests, index, self.context_len));
        }
        self.num_requests += 1;
        Ok(())
    }

    /// Whether nothing is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.num_unfinished() == 0
    }

    /// Samples waiting or running.
    pub fn num_unfinished(&self) -> usize {
        self.scheduler.num_waiting() + self.scheduler.num_running() + self.ended.len()
    }

    /// What is running and waiting, and the room it takes.
    pub fn load(&self) -> Load {
        let (num_running, num_waiting) = (self.scheduler.num_running(), self.scheduler.num_waiting());
        Load { num_running, num_waiting, kv_used: self.scheduler.kv_used() }
    }

    /// From now on the times of finished samples are kept until they are taken.
    pub fn keep_timings(&mut self) {
        self.timings.get_or_insert_default();
    }

    /// The times of the samples that finished since the last call.
    pub fn take_timings(&mut self) -> Vec<Timing> {
        self.timings.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends the samples of request `id` where they are and returns them.
    pub fn abort(&mut self, id: u64) -> Vec<Completion> {
        let taken = self.scheduler.take(|s| s.request.id == id);
        taken.into_iter().map(|sequence| self.complete(sequence)).collect()
    }

    /// Changes the weights between steps: `load` puts version `version` into the model. Tokens sampled from now on
    /// carry it.
    ///
    /// # Errors
    /// What `load` says; the version stays the old one then.
    pub fn swap_weights<E>(
        &mut self,
        version: u64,
        kv: KvOnSwap,
        load: impl FnOnce(&mut M) -> Result<(), E>,
    ) -> Result<(), E> {
        load(&mut self.model)?;
        self.version = version;
        if kv == KvOnSwap::Recompute {
            self.scheduler.preempt_all();
        }
        self.forget_prefixes();
        Ok(())
    }

    /// Gives up what the cache knows of texts that are not running.
    pub fn forget_prefixes(&mut self) {
        self.scheduler.blocks().forget();
    }

    /// The version new tokens carry.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Tokens a prompt and its response may have together.
    pub fn context_len(&self) -> usize {
        self.context_len
    }

    /// Counters since the engine was made.
    pub fn usage(&self) -> Usage {
        Usage { num_preemptions: self.scheduler.num_preemptions(), ..self.usage }
    }

    pub(crate) fn blocks(&mut self) -> &mut BlockManager {
        self.scheduler.blocks()
    }

    fn check(&mut self, request: &Request) -> Result<()> {
        let Request { id, tokens, params } = request;
        params.check()?;
        self.check_tokens(*id, tokens)?;
        let vocab_size = self.model.vocab_size();
        if let Some((token, _)) = params.logit_bias.iter().find(|(token, _)| *token as usize >= vocab_size) {
            return Err(Error::Parameter {
                key: "logit_bias",
                value: format!("token {token}"),
                expected: "tokens of the vocabulary",
            });
        }
        if tokens.len() >= self.context_len {
            return Err(Error::PromptTooLong {
                id: *id,
                prompt_len: tokens.len(),
                context_len: self.context_len,
            });
        }
        let longest = (tokens.len() + params.max_new_tokens).min(self.context_len);
        let (needed, num_blocks) = (self.blocks().blocks_for(longest), self.blocks().num_blocks());
        if needed > num_blocks {
            return Err(Error::CacheTooSmall { id: *id, needed, num_blocks });
        }
        Ok(())
    }

    pub(crate) fn check_tokens(&self, id: u64, tokens: &[u32]) -> Result<()> {
        let vocab_size = self.model.vocab_size();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt { id });
        }
        match tokens.iter().position(|&t| t as usize >= vocab_size) {
            Some(position) => {
                Err(Error::TokenOutOfRange { id, token: tokens[position], position, vocab_size })
            }
            None => Ok(()),
        }
    }

    fn complete(&mut self, sequence: Sequence) -> Completion {
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !self.scheduler.has_request(sequence.order)) {
            drafter.forget(sequence.order);
        }
        self.usage.drafting.add(sequence.drafting);
        let tokens = sequence.response().to_vec();
        Completion {
            id: sequence.request.id,
            index: sequence.index,
            text: (self.decode)(&tokens),
            tokens,
            log_probs: sequence.log_probs,
            kept: sequence.kept,
            routed_experts: sequence.routes.into_ids(sequence.tokens.len().saturating_sub(1)),
            finish_reason: sequence.finish.unwrap_or(FinishReason::Abort),
            weight_versions: sequence.weight_versions,
            num_cached: sequence.num_cached,
            drafting: sequence.drafting,
        }
    }
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod draft_tests;
mod live;
#[cfg(test)]
mod priority_tests;
mod step;
#[cfg(test)]
mod tests;

pub use live::NewToken;
use step::Arriving;
