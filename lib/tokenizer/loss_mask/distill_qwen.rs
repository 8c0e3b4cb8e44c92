//! `distill_qwen` of slime: the first message rendered for generation, and the text of the last one, all of it trained.
//! slime leaves out what stands between the two; here a conversation is a question and its answer, or it is refused.

use serde_json::Value;

use super::{Chat, ChatEncoder, Encoded};
use crate::{Error, Result};

pub(super) fn encode(encoder: &ChatEncoder, chat: Chat<'_>) -> Result<Encoded> {
    let wrong = |got: String| Error::Rule {
        rule: "distill_qwen",
        expected: "a message and the assistant's answer to it, in text",
        got,
    };
    let [question, answer] = chat.messages else {
        return Err(wrong(format!("{} messages", chat.messages.len())));
    };
    let content = answer.get("content").and_then(Value::as_str).filter(|_| chat.is_assistant(1));
    let content = content.ok_or_else(|| wrong(answer.to_string().chars().take(80).collect()))?;
    let mut tokens = encoder.tokens(std::slice::from_ref(question), chat.tools, true)?;
    let mut loss_mask = vec![0; tokens.len()];
    tokens.extend(encoder.tokenizer.encode(content)?);
    loss_mask.resize(tokens.len(), u8::from(chat.is_trained(1)));
    Ok(Encoded { tokens, loss_mask })
}
