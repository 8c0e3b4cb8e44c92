//! Samples, columns, prompts and manifests, as Arrow IPC and JSONL.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod float_list;
mod manifest;
mod ipc;
mod layout;
mod prompt;
mod publication;
mod provenance;
mod raw_json;
mod sample;
mod segment;
#[cfg(test)]
mod testing;
mod view;

pub use error::{Error, Result};
pub use layout::SAMPLE_FIELDS;
pub use manifest::{Account, ColumnRef, Draw, GroupEntry, Manifest, Refusal, SampleEntry, SegmentRef};
pub use prompt::PromptContent;
pub use provenance::{LogProbSpace, Provenance};
pub use publication::{Epoch, Publication, TensorChecksum};
pub use sample::{Sample, SampleId, Status, VersionRun, tokens_hash};
pub use segment::{MAX_BATCH_BYTES, Segment, decode_segment, encode_segment, read_segment};
pub use view::SampleView;

pub use arrow_buffer::Buffer;
