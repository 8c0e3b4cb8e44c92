//! `prefix`: a message of the assistant is what rendering it adds to the prompt it would have been generated from.

use super::{Chat, ChatEncoder, Encoded, role};
use crate::{Error, Result};

pub(super) fn encode(encoder: &ChatEncoder, chat: Chat<'_>) -> Result<Encoded> {
    let Chat { messages, tools, .. } = chat;
    let text = encoder.render(messages, tools, false)?;
    let mut spans = Vec::new();
    for i in (0..messages.len()).filter(|i| chat.is_trained(*i)) {
        let wrong =
            |expected| Error::NotPrefix { number: i + 1, role: role(&messages[i]).to_owned(), expected };
        let prompt = encoder.render(&messages[..i], tools, true)?;
        let said = encoder.render(&messages[..=i], tools, false)?;
        if !said.starts_with(&prompt) {
            return Err(wrong("the prompt that the message would be generated from"));
        }
        if !text.starts_with(&said) {
            return Err(wrong("the messages up to this one"));
        }
        spans.push(prompt.len()..said.len());
    }
    encoder.encode_spans(&text, &spans)
}
