//! `qwen3_5` of slime: the whole conversation is rendered, and turns of the assistant are found in the text by what
//! stands around them.

use super::{Chat, ChatEncoder, Encoded};
use crate::Result;

const BEGIN: &str = "<|im_start|>assistant\n";
const THINK: &str = "<think>\n";
const END: &str = "<|im_end|>";

/// A turn is trained from behind its header, and an opened thinking block right behind that, to its end token and one line
/// break.
pub(super) fn encode(encoder: &ChatEncoder, chat: Chat<'_>) -> Result<Encoded> {
    let text = encoder.render(chat.messages, chat.tools, false)?;
    let mut turns = Vec::new();
    let mut from = 0;
    while let Some(found) = text[from..].find(BEGIN) {
        let mut start = from + found + BEGIN.len();
        if text[start..].starts_with(THINK) {
            start += THINK.len();
        }
        let mut end = text[start..].find(END).map_or(text.len(), |at| start + at + END.len());
        if text[end..].starts_with('\n') {
            end += 1;
        }
        turns.push(start..end);
        from = end;
    }
    encoder.encode_spans(&text, &chat.trained_turns(turns)?)
}
