//! Prompt sources: JSONL and Parquet files (of prompts alone, or with recorded responses), weighted mixtures of them, and procedural verifiable tasks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arithmetic;
mod configured;
mod curriculum;
mod error;
mod jsonl;
mod mixture;
mod parquet;
mod permutation;
mod prompt_file;
mod recorded;
mod rows;
mod slice;
mod source;
#[cfg(test)]
mod streaming_tests;

pub use arithmetic::{Arithmetic, Split};
pub use configured::{eval_source, keys, num_steps, train_source};
pub use curriculum::{Asked, PassRates};
pub use error::{Error, Result};
pub use mixture::{Mixture, Schedule};
pub use permutation::permute;
pub use prompt_file::{Keys, PromptFile};
pub use slice::{Slice, split_spec};
pub use source::{ENVIRONMENTS, Prompt, PromptSource, environment};
