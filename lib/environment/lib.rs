//! Prompt sources: JSONL files and procedural verifiable tasks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arithmetic;
mod configured;
mod error;
mod jsonl;
mod permutation;
mod slice;
mod source;

pub use arithmetic::{Arithmetic, Split};
pub use configured::{eval_source, keys, num_steps, train_source};
pub use error::{Error, Result};
pub use jsonl::{JsonlPrompts, Keys};
pub use permutation::permute;
pub use slice::{Slice, split_spec};
pub use source::{ENVIRONMENTS, Prompt, PromptSource, environment};
