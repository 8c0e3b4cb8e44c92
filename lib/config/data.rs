//! `[model]`, `[data]`, `[eval.<set>]`: the weights a run starts from and the prompts it sees.

use serde::{Deserialize, Serialize};

use crate::curriculum::Curriculum;

/// The number format of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
}

/// `[model]`: the policy that is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// A weight directory: config.json, safetensors, tokenizer.
    pub path: String,
    /// Compute format; master weights are always f32.
    pub dtype: Dtype,
}

impl Default for Model {
    fn default() -> Self {
        Self { path: String::new(), dtype: Dtype::F32 }
    }
}

/// What the rows of `[data]` hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Prompts, to which responses are sampled.
    #[default]
    Prompts,
    /// Conversations, of which the assistant's part is trained (supervised fine-tuning).
    Conversations,
    /// A prompt with a chosen and a rejected response (DPO, reward models).
    Preferences,
}

impl Kind {
    /// The word in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Conversations => "conversations",
            Self::Preferences => "preferences",
        }
    }

    /// Recorded responses of a row; `None` where they are sampled.
    pub fn num_recorded(self) -> Option<u32> {
        match self {
            Self::Prompts => None,
            Self::Conversations => Some(1),
            Self::Preferences => Some(2),
        }
    }

    /// Whether responses stand in the rows.
    pub fn is_recorded(self) -> bool {
        self.num_recorded().is_some()
    }
}

/// How the tokens are found that the assistant says, and that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMask {
    /// `generation` where the chat template has such blocks, else `prefix`.
    #[default]
    Auto,
    /// The template's `{% generation %}` blocks.
    Generation,
    /// What rendering a message adds to the prompt it would be generated from.
    Prefix,
    /// slime's rule: every message rendered alone.
    Qwen,
    /// slime's rule: every message rendered beside a user message.
    Qwen3,
    /// slime's rule: turns are found in the rendered text.
    #[serde(rename = "qwen3_5")]
    Qwen35,
    /// slime's rule: a question for generation, and its answer.
    DistillQwen,
}

/// `[[data.source]]`: one of several weighted files. A table for each, so that a path, its weight and the keys of its
/// rows stand together and go together when one is taken out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSource {
    /// A file as in `data.prompts`, with an optional slice.
    pub path: String,
    /// Its share of the drawn prompts relative to the other sources.
    pub weight: f64,
    /// What the samples call it (`source`); the default is the name of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The key of a row's prompt; this and the following default to those of `[data]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_key: Option<String>,
    /// The key of a row's expected answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_key: Option<String>,
    /// The key of a row's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_key: Option<String>,
    /// The key of a row's tool definitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_key: Option<String>,
    /// The key of a row's conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_key: Option<String>,
    /// The key of a row's recorded response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_key: Option<String>,
    /// The key of a row's better response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_key: Option<String>,
    /// The key of a row's worse response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_key: Option<String>,
}

impl DataSource {
    /// The name, else that of the file without its folder and slice.
    pub fn name(&self) -> &str {
        let path = self.path.split_once("@[").map_or(self.path.as_str(), |(path, _)| path);
        self.name.as_deref().unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path))
    }
}

/// `[data]`: where prompts come from: a file, several weighted files, or a procedural environment; and where they stand
/// with recorded responses, what of these is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    /// `prompts`, `conversations` or `preferences`: what the rows hold.
    pub kind: Kind,
    /// A file of JSON lines (also `.zst`) or Parquet, with an optional slice: `prompts.jsonl@[0:1000]`.
    pub prompts: Option<String>,
    /// Several files in place of `prompts`, drawn by weight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<DataSource>,
    /// The key of a row's prompt: text, or chat messages.
    pub input_key: String,
    /// The key of a row's expected answer.
    pub label_key: String,
    /// The key of a row's metadata, passed on unchanged.
    pub metadata_key: String,
    /// The key of a row's tool definitions.
    pub tool_key: String,
    /// The key of a row's conversation (`kind = "conversations"`).
    pub messages_key: String,
    /// The key of a row's recorded response, where a conversation is a prompt and its completion.
    pub completion_key: String,
    /// The key of a row's better response (`kind = "preferences"`).
    pub chosen_key: String,
    /// The key of a row's worse response.
    pub rejected_key: String,
    /// The key of a number that says how much better it is; it goes into the sample's metadata.
    pub margin_key: String,
    /// `auto`, `generation`, `prefix`, `qwen`, `qwen3`, `qwen3_5` or `distill_qwen`: which tokens of recorded messages
    /// are trained.
    pub loss_mask: LossMask,
    /// Recorded conversations are cut off at so many tokens; without it, longer ones than the model's context are refused.
    pub max_len: Option<u32>,
    /// Render messages (or text, as one user message) with the tokenizer's chat template.
    pub apply_chat_template: bool,
    /// More variables for the template, such as `enable_thinking`.
    pub chat_template_kwargs: toml::Table,
    /// Prompts of more tokens are refused.
    pub max_prompt_len: Option<u32>,
    /// Shuffle the rows of every epoch by (seed, epoch).
    pub shuffle: bool,
    /// `pass_rate:min=A max=B`: prompts whose last group of samples was right by a share outside of this window give way to
    /// remembered ones inside of it, in the share of draws that `share=C` names (default 0.9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<Curriculum>,
    /// A procedural environment in place of a file: `arithmetic`.
    pub environment: Option<String>,
    /// The environment's difficulty (arithmetic: operands are below it).
    pub difficulty: u64,
}

impl Data {
    /// Whether anything says where prompts come from.
    pub fn is_named(&self) -> bool {
        self.prompts.is_some() || self.environment.is_some() || !self.source.is_empty()
    }
}

impl Default for Data {
    fn default() -> Self {
        Self {
            kind: Kind::Prompts,
            prompts: None,
            source: Vec::new(),
            input_key: "prompt".to_owned(),
            label_key: "label".to_owned(),
            metadata_key: "metadata".to_owned(),
            tool_key: "tools".to_owned(),
            messages_key: "messages".to_owned(),
            completion_key: "completion".to_owned(),
            chosen_key: "chosen".to_owned(),
            rejected_key: "rejected".to_owned(),
            margin_key: "margin".to_owned(),
            loss_mask: LossMask::Auto,
            max_len: None,
            apply_chat_template: true,
            chat_template_kwargs: toml::Table::new(),
            max_prompt_len: None,
            shuffle: true,
            curriculum: None,
            environment: None,
            difficulty: 10,
        }
    }
}

/// Which part of an environment's tasks an evaluation asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Tasks that are also trained on.
    Train,
    /// Tasks that training never sees.
    HeldOut,
}

/// `[eval.<set>]`: an evaluation that is run while training; keys of rows are those of `[data]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Eval {
    /// A file as in `data.prompts`; when neither this nor `environment` is given, the source of `[data]`.
    pub prompts: Option<String>,
    /// A procedural environment in place of a file.
    pub environment: Option<String>,
    /// The environment's difficulty; the default is that of `[data]`.
    pub difficulty: Option<u64>,
    /// The environment's part that is asked.
    pub split: Split,
    /// Evaluate when this divides the version, and at the end.
    pub interval: u64,
    /// Evaluate before the first step, too (version 0).
    pub at_start: bool,
    /// Reward types in place of `reward.types`.
    pub reward_types: Option<Vec<String>>,
    /// Prompts that are asked: the first of the set.
    pub num_prompts: u64,
    /// Samples for each prompt.
    pub n_samples_per_prompt: u32,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Keep the smallest set of tokens with this probability; this and the following default to those of `[rollout]`.
    pub top_p: Option<f64>,
    /// Keep this many of the likeliest tokens.
    pub top_k: Option<u32>,
    /// Keep tokens of at least this share of the likeliest token's probability.
    pub min_p: Option<f64>,
    /// Strings that end a response.
    pub stop: Option<Vec<String>>,
    /// Longest response.
    pub max_response_len: Option<u32>,
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            prompts: None,
            environment: None,
            difficulty: None,
            split: Split::HeldOut,
            interval: 1,
            at_start: true,
            reward_types: None,
            num_prompts: 64,
            n_samples_per_prompt: 1,
            temperature: 0.0,
            top_p: None,
            top_k: None,
            min_p: None,
            stop: None,
            max_response_len: None,
        }
    }
}
