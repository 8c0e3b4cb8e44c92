//! `[rollout]`, `[reward]`: how responses are sampled and scored.

use serde::{Deserialize, Serialize};

use crate::buffer::{BufferOrder, Partial};
use crate::dynamic_filter::{self, DynamicFilter};
use crate::engine_weights::EngineWeights;
use crate::{Error, HfConfig, Parallel, Result};

/// Numbers of ranks that an error names.
const NUM_NEAREST: usize = 3;

/// `[rollout]`: the shape of a step and the sampling parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rollout {
    /// Prompts (groups) of a step; part of the batch identity.
    pub rollout_batch_size: Option<u32>,
    /// Samples of a group; part of the batch identity.
    pub n_samples_per_prompt: Option<u32>,
    /// Groups under way or accepted while a step is open; the default is `rollout_batch_size`. In arrival order surplus
    /// groups are kept for later steps, in fixed order they make room for those a filter refuses, and are dropped.
    pub over_sampling_batch_size: Option<u32>,
    /// Which groups are accepted, as a text or a list of which all have to agree: `none`, `nonzero_std`,
    /// `pass_rate:min=A max=B`, `response_len:min=A max=B`, `command:PROGRAM`. With the word `fallback` a refused group may
    /// fill a step that would have to draw more.
    #[serde(deserialize_with = "dynamic_filter::list")]
    pub dynamic_filter: Vec<DynamicFilter>,
    /// Which of more accepted groups than it needs a step takes: `fifo`, `newest`, `priority` (whose rewards vary most),
    /// `stratified` (from every source in turn), `command:PROGRAM`.
    pub buffer_order: BufferOrder,
    /// Steps that may train a group, each within `run.max_staleness`.
    pub max_reuse: u32,
    /// What becomes of samples that are under way when newer weights come: `off` (they end under their own), `train` (they
    /// go on), `mask` (they go on, and only what the last weights sampled is trained). The default is `train` in arrival
    /// order; in fixed order there is no such sample.
    pub partial: Option<Partial>,
    /// Once a step is full, samples that are under way stop where they are, and go on under the weights that are trained on
    /// it.
    pub early_abort: bool,
    /// A step that drew this many groups without being full ends the run; the default is 16 batches.
    pub max_groups: Option<u32>,
    /// Longest response in tokens.
    pub max_response_len: u32,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Keep the smallest set of tokens with this probability; 1 keeps all.
    pub top_p: f64,
    /// Keep this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens of at least this share of the likeliest token's probability; 0 keeps all.
    pub min_p: f64,
    /// Divides the logits of tokens that stand in prompt or response where they are above 0, multiplies them below; 1 changes
    /// nothing.
    pub repetition_penalty: f64,
    /// Taken off the logit of a token once for each time it stands in the response; -2 to 2.
    pub frequency_penalty: f64,
    /// Taken off the logit of every token of the response; -2 to 2.
    pub presence_penalty: f64,
    /// Strings that end a response.
    pub stop: Vec<String>,
    /// Engines that share the prompts of a step.
    pub num_replicas: u32,
    /// Ranks of an engine: they share the heads and widths of every layer, and the vocabulary.
    pub tp: u32,
    /// Of these, ranks that have the experts of every layer between them; the others share the width of each expert.
    pub ep: u32,
    /// Sequences that one engine runs at the same time.
    pub max_in_flight: u32,
    /// Whether a prompt that begins like an earlier one of its step takes that one's keys and values.
    pub prefix_cache: bool,
    /// Tokens an engine guesses at once at most, from n-grams that stood before in the prompt, the response and the responses
    /// of its group; 0 guesses none. Samples are the same with and without.
    pub speculative_num_draft_tokens: u32,
    /// In what engines keep keys and values: `auto` (`model.dtype`) or `fp8_e4m3`, a byte each.
    pub kv_cache_dtype: KvCacheDtype,
    /// `[rollout.weights]`: the form in which engines get the weights; missing, that of `model.dtype`.
    pub weights: Option<EngineWeights>,
}

impl Rollout {
    /// Whether samples are drawn from a part of the vocabulary.
    pub fn truncates(&self) -> bool {
        self.temperature > 0.0 && (self.top_p < 1.0 || self.top_k > 0 || self.min_p > 0.0)
    }

    /// How the ranks of an engine share a model.
    ///
    /// # Errors
    /// They cannot, with the numbers of ranks nearest to theirs that can.
    pub fn layout(&self, model: &HfConfig) -> Result<Parallel> {
        let of = |tp: u32| {
            let ep = if tp.is_multiple_of(self.ep) { self.ep } else { 1 };
            let etp = if model.moe.is_some() { tp / ep } else { 1 };
            Parallel { tp, ep, etp, dp: Some(1), ..Parallel::default() }
        };
        let layout = of(self.tp);
        let problem = if self.tp.is_multiple_of(self.ep) {
            layout.misfit("rollout", 1, None, model)
        } else {
            Some(format!("rollout.ep: expected a divisor of rollout.tp {}, got {}", self.tp, self.ep))
        };
        let Some(problem) = problem else { return Ok(layout) };
        let mut fits: Vec<u32> = (1..=2 * self.tp.max(self.ep).min(512))
            .filter(|tp| tp.is_multiple_of(self.ep) && of(*tp).misfit("rollout", 1, None, model).is_none())
            .collect();
        fits.sort_by_key(|tp| tp.abs_diff(self.tp));
        let fits: Vec<String> = fits.iter().take(NUM_NEAREST).map(u32::to_string).collect();
        let hint = if fits.is_empty() {
            String::new()
        } else {
            format!("\nhint: rollout.tp {} fit", fits.join(", "))
        };
        Err(Error::Conflict(format!("{problem}{hint}")))
    }
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            rollout_batch_size: None,
            n_samples_per_prompt: None,
            over_sampling_batch_size: None,
            dynamic_filter: Vec::new(),
            buffer_order: BufferOrder::Fifo,
            max_reuse: 1,
            partial: None,
            early_abort: false,
            max_groups: None,
            max_response_len: 1024,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            stop: Vec::new(),
            num_replicas: 1,
            tp: 1,
            ep: 1,
            max_in_flight: 64,
            prefix_cache: true,
            speculative_num_draft_tokens: 0,
            kv_cache_dtype: KvCacheDtype::Auto,
            weights: None,
        }
    }
}

/// In what an engine keeps keys and values; the names are `SGLang`'s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCacheDtype {
    /// The type of the model.
    #[default]
    Auto,
    /// Four bits of exponent and three of mantissa, without scales: what is beyond 448 is cut off.
    Fp8E4m3,
}

/// Where rewards are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In the step builder's process.
    Inline,
    /// By `slime-reward --follow RUN`.
    Separate,
}

/// `[reward]`: what a good response is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reward {
    /// Reward types as `slime-reward --type` takes them; their weighted values are summed.
    pub types: Vec<String>,
    /// `inline` or `separate`.
    pub placement: Placement,
    /// A run whose finished groups wait so many seconds for a reward, while nothing else moves, ends; 0 waits for ever.
    pub patience_s: u64,
    /// Whether programs and servers may reward spans of text: the tokenizer of `model.path` tells their tokens.
    pub spans: bool,
    /// Least isolation with which code of responses is run; a machine that allows less is an error.
    pub sandbox_min: SandboxTier,
}

/// Isolation of untrusted code, from the least to the most (README, "Rewards of code").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxTier {
    /// Limits of time, memory, processes and output.
    Limits,
    /// A list of allowed system calls.
    Seccomp,
    /// Landlock: no files of the user.
    Landlock,
    /// Namespaces: nothing else exists.
    Namespaces,
}

impl SandboxTier {
    /// The name, as in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::Namespaces => "namespaces",
        }
    }
}

impl Reward {
    /// Whether one of the types runs code of responses.
    pub fn runs_code(&self) -> bool {
        run_code(&self.types)
    }
}

/// Whether one of these reward types runs code, also inside of another one, as in `guard:code`.
pub(crate) fn run_code(types: &[String]) -> bool {
    let is_code = |word: &str| word == "code";
    types.iter().any(|name| name.split([':', ' ', '=', '\'', '"', '_']).any(is_code))
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            types: vec!["number".to_owned()],
            placement: Placement::Inline,
            patience_s: 3600,
            spans: false,
            sandbox_min: SandboxTier::Landlock,
        }
    }
}
