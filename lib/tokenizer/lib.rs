//! Text to ids and back, chat templates, and which tokens of a conversation are trained.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chat_template;
mod clock;
mod decode_stream;
mod error;
mod generation_block;
mod loss_mask;
mod python_json;
mod special;
mod token_bytes;
mod tokenizer;

pub use chat_template::ChatTemplate;
pub use decode_stream::DecodeStream;
pub use error::{Error, Result};
pub use loss_mask::{Chat, ChatEncoder, Encoded};
pub use token_bytes::TokenBytes;
pub use tokenizer::Tokenizer;
