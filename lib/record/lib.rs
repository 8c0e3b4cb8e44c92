//! Samples, columns, prompts and manifests, as Arrow IPC and JSONL.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod float_list;
mod prompt;
mod raw_json;
mod sample;

pub use error::{Error, Result};
pub use prompt::PromptContent;
pub use sample::{Sample, SampleId, Status, VersionRun, tokens_hash};
