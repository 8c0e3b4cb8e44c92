//! `qwen` and `qwen3` of slime: every message is rendered by itself, and the tokens are put one behind the other. What
//! the template says before the assistant speaks (`<|im_start|>assistant\n`) is not trained, the rest of the message is.

use serde_json::{Value, json};

use super::{Chat, ChatEncoder, Encoded, role};
use crate::{Error, Result};

/// What messages are rendered beside, and what the template's habits are seen from.
const SENTINEL: &str = "a message that only measures";

/// What a template adds to a message that stands alone.
#[derive(Debug)]
pub(super) struct Alone {
    /// The rule that asks.
    rule: &'static str,
    /// The system prompt it puts before a conversation that has none.
    default_system: Vec<u32>,
    /// One user message, without that.
    sentinel: Vec<u32>,
    /// The length of what it says before the assistant speaks.
    generation_len: usize,
}

impl Alone {
    /// Two user messages are longer than one by what one is long; what is more of the one is the system prompt.
    pub(super) fn probe(encoder: &ChatEncoder, rule: &'static str) -> Result<Self> {
        let one = [sentinel()];
        let tokens = encoder.tokens(&one, None, false)?;
        let two = encoder.tokens(&[sentinel(), sentinel()], None, false)?;
        let generate = encoder.tokens(&one, None, true)?;
        let system_len = (2 * tokens.len()).checked_sub(two.len());
        let generation_len = generate.len().checked_sub(tokens.len());
        let (Some(system_len), Some(generation_len)) = (system_len, generation_len) else {
            return Err(unfit(rule, "a message rendered with another that does not fit it".to_owned()));
        };
        let (default_system, sentinel) = tokens.split_at_checked(system_len).unwrap_or_default();
        if sentinel.is_empty() || two != [default_system, sentinel, sentinel].concat() {
            return Err(unfit(rule, "one that renders the first of two user messages otherwise".to_owned()));
        }
        Ok(Self {
            rule,
            default_system: default_system.to_vec(),
            sentinel: sentinel.to_vec(),
            generation_len,
        })
    }
}

fn sentinel() -> Value {
    json!({"role": "user", "content": SENTINEL})
}

fn unfit(rule: &'static str, got: String) -> Error {
    Error::Rule { rule, expected: "a template that renders messages one by one", got }
}

/// Every message alone; message 0 has the tools and may have the default system prompt, which is taken from the others.
pub(super) fn encode(encoder: &ChatEncoder, alone: &Alone, chat: Chat<'_>) -> Result<Encoded> {
    let mut whole = Encoded { tokens: Vec::new(), loss_mask: Vec::new() };
    for (i, message) in chat.messages.iter().enumerate() {
        let tools = chat.tools.filter(|_| i == 0);
        let tokens = encoder.tokens(std::slice::from_ref(message), tools, false)?;
        let has_default = i > 0 && role(message) != "system";
        let system: &[u32] = if has_default { &alone.default_system } else { &[] };
        let tokens = tokens
            .strip_prefix(system)
            .ok_or_else(|| unfit(alone.rule, format!("message {} rendered otherwise", i + 1)))?;
        whole.append(tokens, chat.is_trained(i), alone);
    }
    Ok(whole)
}

/// Every message beside a user message, which is cut off again: templates treat a last message, or one without a question,
/// in ways of their own. Tool messages that follow each other are one.
pub(super) fn encode_beside_sentinel(
    encoder: &ChatEncoder,
    alone: &Alone,
    chat: Chat<'_>,
) -> Result<Encoded> {
    let mut whole = Encoded { tokens: Vec::new(), loss_mask: Vec::new() };
    let mut start = 0;
    while start < chat.messages.len() {
        let is_tool = |message: &&Value| role(message) == "tool";
        let len = chat.messages[start..].iter().take_while(is_tool).count().max(1);
        let group = &chat.messages[start..start + len];
        let tokens = if start == 0 {
            let tokens = encoder.tokens(&[group, &[sentinel()]].concat(), chat.tools, false)?;
            tokens.strip_suffix(alone.sentinel.as_slice()).map(<[u32]>::to_vec)
        } else {
            let tokens = encoder.tokens(&[&[sentinel()], group].concat(), None, false)?;
            let before = [alone.default_system.as_slice(), &alone.sentinel].concat();
            tokens.strip_prefix(before.as_slice()).map(<[u32]>::to_vec)
        };
        let tokens =
            tokens.ok_or_else(|| unfit(alone.rule, format!("message {} rendered otherwise", start + 1)))?;
        whole.append(&tokens, chat.is_trained(start), alone);
        start += len;
    }
    Ok(whole)
}

impl Encoded {
    fn append(&mut self, tokens: &[u32], is_trained: bool, alone: &Alone) {
        self.tokens.extend(tokens);
        let trained = (0..tokens.len()).map(|i| u8::from(is_trained && i >= alone.generation_len));
        self.loss_mask.extend(trained);
    }
}
