//! One sample being generated: its tokens, what of them is in the KV cache, and what was recorded on the way.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use slime_record::VersionRun;

use crate::block_manager::Told;
use crate::drafter::{Drafter, Drafting};
use crate::penalties::SeenTokens;
use crate::routes::RouteRows;
use crate::{FinishReason, GrammarState, KeptIds, Request, RowDraw, Sampled};

/// Tokens guessed before it is known how well guesses go.
const FIRST_DRAFT_LEN: usize = 3;

/// A token on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    /// The number of the step that draws it.
    pub step: u64,
    /// Its row among what that step draws.
    pub row: u32,
    /// The version of the weights.
    pub version: u64,
}

/// A sample in the making. Preemption empties `block_table` and `num_computed` and nothing else.
pub(crate) struct Sequence {
    pub request: Arc<Request>,
    /// Counts requests in the order they came; equal for all samples of one.
    pub order: u64,
    /// Which of the request's samples.
    pub index: u32,
    /// Prompt and response.
    pub tokens: Vec<u32>,
    /// Tokens whose keys and values are in the cache.
    pub num_computed: usize,
    /// Tokens the current step computes; 0 when it leaves this sequence out.
    pub chunk_len: usize,
    /// Guesses of the tokens behind the last one, which the current step computes with it.
    pub draft: Vec<u32>,
    /// How many tokens are guessed next time.
    pub draft_len: usize,
    /// What became of them.
    pub drafting: Drafting,
    /// Tokens that steps on their way draw, oldest first.
    pub flights: Vec<Flight>,
    /// Tokens it may have at most.
    pub max_len: usize,
    pub block_table: Vec<u32>,
    /// How far the cache knows these blocks.
    pub told: Told,
    pub log_probs: Vec<f32>,
    /// What truncation left to each choice, where that is asked for.
    pub kept: KeptIds,
    /// The experts of its tokens, where that is asked for.
    pub routes: RouteRows,
    /// Kept where penalties read it.
    pub seen: Option<SeenTokens>,
    pub weight_versions: Vec<VersionRun>,
    pub finish: Option<FinishReason>,
    pub submitted: Instant,
    /// When its first step began.
    pub started: Option<Instant>,
    pub first_token: Option<Instant>,
    /// Prompt tokens that were in the cache when it was let in first.
    pub num_cached: usize,
    /// Where it stands in its grammar.
    pub grammar: Option<Box<dyn GrammarState>>,
}

impl fmt::Debug for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, index, num_computed, chunk_len, block_table, .. } = self;
        formatter
            .debug_struct("Sequence")
            .field("id", &request.id)
            .field("index", index)
            .field("num_computed", num_computed)
            .field("chunk_len", chunk_len)
            .field("block_table", block_table)
            .finish_non_exhaustive()
    }
}

impl Sequence {
    pub fn new(request: Arc<Request>, order: u64, index: u32, context_len: usize) -> Self {
        let params = &request.params;
        let max_len = (request.tokens.len() + params.max_new_tokens).min(context_len);
        let seen = (!params.penalties.is_none()).then(|| {
            let num_continued = params.first_token as usize;
            SeenTokens::new(&request.tokens, request.tokens.len().saturating_sub(num_continued))
        });
        let grammar = request.params.constraint.as_ref().map(|constraint| constraint.0.begin());
        Self {
            max_len,
            draft: Vec::new(),
            draft_len: FIRST_DRAFT_LEN,
            drafting: Drafting::default(),
            flights: Vec::new(),
            seen,
            kept: KeptIds::default(),
            routes: RouteRows::default(),
            tokens: request.tokens.clone(),
            request,
            order,
            index,
            num_computed: 0,
            chunk_len: 0,
            block_table: Vec::new(),
            told: Told::default(),
            log_probs: Vec::new(),
            weight_versions: Vec::new(),
            finish: None,
            submitted: Instant::now(),
            started: None,
            first_token: None,
            num_cached: 0,
            grammar,
        }
    }

    pub fn prompt_len(&self) -> usize {
        self.request.tokens.len()
    }

    pub fn response(&self) -> &[u32] {
        &self.tokens[self.prompt_len()..]
    }

    /// Tokens not yet in the cache, those on their way included.
    pub fn num_pending(&self) -> usize {
        self.tokens.len() + self.flights.len() - self.num_computed
    }

    /// Whether its next tokens can be guessed: it decodes, and each of them may be drawn without the one before it.
    pub fn is_draftable(&self) -> bool {
        self.num_pending() == 1 && self.flights.is_empty() && self.seen.is_none() && self.grammar.is_none()
    }

    /// Tokens that the scheduled step draws: the next one, and the one behind each guess.
    pub fn num_draws(&self) -> usize {
        if self.is_sampled() { self.draft.len() + 1 } else { 0 }
    }

    /// Whether the last token on its way is the last one there can be.
    pub fn is_full(&self) -> bool {
        self.tokens.len() + self.flights.len() >= self.max_len
    }

    /// Whether logits have to come to the host to draw its tokens.
    pub fn needs_logits(&self) -> bool {
        let params = &self.request.params;
        let truncates = params.temperature > 0.0 && !params.keeps_all();
        self.grammar.is_some()
            || self.seen.is_some()
            || !params.logit_bias.is_empty()
            || params.top_log_probs > 0
            || params.keeps_ids && truncates
    }

    /// How the next token is drawn.
    pub fn draw(&self) -> RowDraw {
        let params = &self.request.params;
        if params.temperature <= 0.0 {
            return RowDraw::GREEDY;
        }
        RowDraw {
            inverse_temperature: (1.0 / params.temperature) as f32,
            top_k: params.top_k as u32,
            top_p: params.top_p as f32,
            min_p: params.min_p as f32,
            uniform: self.uniform(0),
        }
    }

    pub fn is_scheduled(&self) -> bool {
        self.chunk_len > 0
    }

    /// Whether the step that is scheduled yields a token.
    pub fn is_sampled(&self) -> bool {
        self.chunk_len > 0 && self.chunk_len == self.num_pending() + self.draft.len()
    }

    pub fn priority(&self) -> i64 {
        self.request.params.priority
    }

    pub fn has_prompt(&self) -> bool {
        self.num_computed >= self.prompt_len()
    }

    pub fn append(&mut self, sampled: Sampled, version: u64) {
        let Sampled { token, log_prob, kept } = sampled;
        self.tokens.push(token);
        self.log_probs.push(log_prob);
        if self.request.params.keeps_ids {
            self.kept.push(&kept);
        }
        if let Some(seen) = &mut self.seen {
            seen.push(token);
        }
        match self.weight_versions.last_mut() {
            Some(run) if run.version == version => run.len += 1,
            _ => self.weight_versions.push(VersionRun { version, len: 1 }),
        }
    }

    /// Compares the newest token with the guess in its place. Guesses behind a wrong one, or behind the end, are given up: their
    /// places in the cache count as empty again. Only where the newest token was drawn with the guesses of its step.
    pub fn check_draft(&mut self) {
        if self.draft.is_empty() {
            return;
        }
        // Every token of the step but the one behind its last guess stands for a guess.
        let at = self.draft.len() - self.flights.len();
        let is_right = self.draft.get(at).is_some_and(|guess| self.tokens.last() == Some(guess));
        if is_right && self.finish.is_none() {
            return;
        }
        let num_accepted = at + usize::from(is_right);
        self.drafting.add(Drafting {
            num_verified: 1,
            num_drafted: self.draft.len() as u64,
            num_accepted: num_accepted as u64,
        });
        self.draft_len = Drafter::next_len(self.draft.len(), num_accepted);
        self.draft.clear();
        self.flights.clear();
        self.num_computed = self.tokens.len() - 1;
    }

    /// The uniform number that chooses the next token, or the one `ahead` tokens behind it.
    pub fn uniform(&self, ahead: usize) -> f64 {
        let params = &self.request.params;
        let mut seed = params.seed;
        seed.index += self.index;
        seed.uniform(params.first_token + (self.log_probs.len() + self.flights.len() + ahead) as u64)
    }
}
