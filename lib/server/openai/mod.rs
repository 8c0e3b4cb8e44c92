//! `OpenAI`'s routes: chats and completions, whole or as events.

mod chat;
mod completions;
mod fields;
mod log_probs;
mod messages;
mod stream;

pub use chat::chat_completions;
pub use completions::completions;

use serde_json::{Value, json};
use slime_engine::FinishReason;

use crate::text::{Matched, Sample};

/// `OpenAI`'s word for why a sample ended; null while it goes on.
fn finish_reason(sample: &Sample, has_calls: bool) -> Value {
    match sample.finish {
        None => Value::Null,
        Some(FinishReason::Stop) if has_calls => "tool_calls".into(),
        Some(reason) => reason.as_str().into(),
    }
}

/// What ended a sample, as `SGLang` tells it beside `OpenAI`'s fields.
fn matched_stop(sample: &Sample) -> Value {
    match &sample.matched {
        None => Value::Null,
        Some(Matched::Token(token)) => (*token).into(),
        Some(Matched::Text(text)) => text.as_str().into(),
    }
}

/// The count of tokens of a request.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    prompt: usize,
    completion: usize,
    cached: usize,
}

impl Counts {
    fn add(&mut self, sample: &Sample) {
        self.completion += sample.tokens.len();
        self.cached += sample.num_cached;
    }

    fn usage(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}
