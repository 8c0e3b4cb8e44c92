//! Text to ids and back, and chat templates.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chat_template;
mod clock;
mod decode_stream;
mod error;
mod python_json;
mod special;
mod tokenizer;

pub use chat_template::ChatTemplate;
pub use decode_stream::DecodeStream;
pub use error::{Error, Result};
pub use tokenizer::Tokenizer;
