//! `generation`: what the template puts into `{% generation %}` blocks, as Hugging Face's
//! `apply_chat_template(..., return_assistant_tokens_mask=True)`.
//!
//! Hugging Face asks for the token of a block's first and last character. Where there is none it masks nothing further,
//! or everything to the end, and of a last character that is several tokens only the first; here a token is trained
//! when any of its characters is in a block, which is the same wherever blocks begin and end with whole tokens.

use super::{Chat, ChatEncoder, Encoded};
use crate::Result;

pub(super) fn encode(encoder: &ChatEncoder, chat: Chat<'_>) -> Result<Encoded> {
    let (text, blocks) =
        encoder.tokenizer.apply_chat_template_marked(chat.messages, chat.tools, &encoder.kwargs)?;
    encoder.encode_spans(&text, &chat.trained_turns(blocks)?)
}
