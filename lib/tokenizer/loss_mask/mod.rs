//! A conversation as token ids, and which of them are trained: what the assistant says, found by one of several rules.
//!
//! Rules, one file each: `generation` (the template says it), `prefix` (rendering says it), and those of the framework
//! slime (`mask_utils.py`) under its names.

mod distill_qwen;
mod generation;
mod prefix;
mod qwen;
mod qwen3_5;

use std::ops::Range;

use serde_json::{Map, Value};
use slime_config::LossMask;

use crate::{Error, Result, Tokenizer};
use qwen::Alone;

/// The token of `DeepSeek`'s distilled models that begins a turn of the assistant; with it slime's `qwen` is `distill_qwen`.
const DISTILLED: &str = "<｜Assistant｜>";

/// A conversation to be trained on.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// Its messages.
    pub messages: &'a [Value],
    /// So many of them are the prompt: what the assistant says there is not trained.
    pub num_prompt: usize,
    /// The tools that are offered, as the template takes them.
    pub tools: Option<&'a Value>,
}

/// A conversation as a model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// For each of them 1 where it is trained, else 0.
    pub loss_mask: Vec<u8>,
}

/// The rules in force.
#[derive(Debug)]
enum Rule {
    Generation,
    Prefix,
    Qwen(Alone),
    Qwen3(Alone),
    Qwen35,
    DistillQwen,
}

/// Turns conversations into tokens and loss masks.
#[derive(Debug)]
pub struct ChatEncoder {
    tokenizer: Tokenizer,
    kwargs: Map<String, Value>,
    rule: Rule,
}

impl ChatEncoder {
    /// An encoder by the rule that `data.loss_mask` names; `kwargs` are more variables for the template.
    ///
    /// # Errors
    /// A template that is missing, or not what the rule needs.
    pub fn new(tokenizer: &Tokenizer, loss_mask: LossMask, kwargs: Map<String, Value>) -> Result<Self> {
        let has_blocks = tokenizer.template(&kwargs)?.0.has_generation_blocks();
        let mut encoder = Self { tokenizer: tokenizer.without_post_processor(), kwargs, rule: Rule::Prefix };
        encoder.rule = match loss_mask {
            LossMask::Auto | LossMask::Generation if has_blocks => Rule::Generation,
            LossMask::Generation => return Err(Error::NoGenerationBlocks),
            LossMask::Auto | LossMask::Prefix => Rule::Prefix,
            LossMask::Qwen if tokenizer.token_to_id(DISTILLED).is_some() => Rule::DistillQwen,
            LossMask::Qwen => Rule::Qwen(Alone::probe(&encoder, "qwen")?),
            LossMask::Qwen3 => Rule::Qwen3(Alone::probe(&encoder, "qwen3")?),
            LossMask::Qwen35 => Rule::Qwen35,
            LossMask::DistillQwen => Rule::DistillQwen,
        };
        Ok(encoder)
    }

    /// The name of the rule in force, where `auto` and `qwen` have chosen.
    pub fn rule(&self) -> &'static str {
        match self.rule {
            Rule::Generation => "generation",
            Rule::Prefix => "prefix",
            Rule::Qwen(_) => "qwen",
            Rule::Qwen3(_) => "qwen3",
            Rule::Qwen35 => "qwen3_5",
            Rule::DistillQwen => "distill_qwen",
        }
    }

    /// Tokens and loss mask of a conversation. A message whose `step_loss_mask` is not 1 is not trained.
    ///
    /// # Errors
    /// The template refuses the messages, or the rule cannot tell who says what.
    pub fn encode(&self, chat: Chat<'_>) -> Result<Encoded> {
        match &self.rule {
            Rule::Generation => generation::encode(self, chat),
            Rule::Prefix => prefix::encode(self, chat),
            Rule::Qwen(alone) => qwen::encode(self, alone, chat),
            Rule::Qwen3(alone) => qwen::encode_beside_sentinel(self, alone, chat),
            Rule::Qwen35 => qwen3_5::encode(self, chat),
            Rule::DistillQwen => distill_qwen::encode(self, chat),
        }
    }

    fn render(&self, messages: &[Value], tools: Option<&Value>, generate: bool) -> Result<String> {
        self.tokenizer.apply_chat_template(messages, tools, generate, &self.kwargs)
    }

    fn tokens(&self, messages: &[Value], tools: Option<&Value>, generate: bool) -> Result<Vec<u32>> {
        self.tokenizer.encode(&self.render(messages, tools, generate)?)
    }

    /// Tokens of a text, of which those are trained that have a character in one of `spans` (bytes, in order).
    fn encode_spans(&self, text: &str, spans: &[Range<usize>]) -> Result<Encoded> {
        let encoding = self.tokenizer.encode_with_offsets(text)?;
        let mut first = 0;
        let mut loss_mask = Vec::with_capacity(encoding.len());
        for &(start, end) in encoding.get_offsets() {
            // Tokens of one character share its place, so a span is left behind only when a token begins after it.
            while spans.get(first).is_some_and(|span| span.end <= start) {
                first += 1;
            }
            let is_trained =
                spans[first..].iter().take_while(|span| span.start < end).any(|span| span.end > start);
            loss_mask.push(u8::from(is_trained && start < end));
        }
        Ok(Encoded { tokens: encoding.get_ids().to_vec(), loss_mask })
    }
}

impl Chat<'_> {
    fn is_assistant(&self, message: usize) -> bool {
        self.messages[message].get("role").is_some_and(|role| role == "assistant")
    }

    fn is_trained(&self, message: usize) -> bool {
        let weight = self.messages[message].get("step_loss_mask");
        let is_on = match weight {
            None | Some(Value::Null) => true,
            Some(Value::Bool(is_on)) => *is_on,
            Some(weight) => weight.as_f64().is_some_and(|weight| weight.total_cmp(&1.0).is_eq()),
        };
        message >= self.num_prompt && is_on && self.is_assistant(message)
    }

    /// Those of the assistant's turns that are trained. Turns are told apart by their number only, so there must be one
    /// for each message of the assistant, unless all are trained anyway.
    fn trained_turns(&self, turns: Vec<Range<usize>>) -> Result<Vec<Range<usize>>> {
        let assistant: Vec<usize> = (0..self.messages.len()).filter(|i| self.is_assistant(*i)).collect();
        if assistant.iter().all(|message| self.is_trained(*message)) {
            return Ok(turns);
        }
        if turns.len() != assistant.len() {
            return Err(Error::Turns { expected: assistant.len(), got: turns.len() });
        }
        let kept = turns.into_iter().zip(assistant).filter(|(_, message)| self.is_trained(*message));
        Ok(kept.map(|(turn, _)| turn).collect())
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
mod golden_tests;
