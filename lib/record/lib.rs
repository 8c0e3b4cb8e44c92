//! Samples, columns, prompts and manifests, as Arrow IPC and JSONL.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod column;
mod describe;
mod error;
mod float_list;
mod ipc;
mod jsonl;
mod layout;
mod manifest;
mod prompt;
mod provenance;
mod publication;
#[cfg(test)]
mod pyarrow_tests;
mod raw_json;
mod row;
mod sample;
mod segment;
mod sniff;
mod stream;
#[cfg(test)]
mod testing;
mod view;

pub use column::{Column, ColumnValues};
pub use describe::{ColumnInfo, Description, describe};
pub use error::{Error, Result};
pub use jsonl::{JsonlReader, JsonlWriter};
pub use layout::SAMPLE_FIELDS;
pub use manifest::{
    Account, ColumnRef, Draw, DropReason, Dropped, GroupEntry, Manifest, Refusal, SampleEntry, Scores,
    SegmentRef, Stages,
};
pub use prompt::PromptContent;
pub use provenance::{LogProbSpace, Provenance};
pub use publication::{Base, Epoch, NodeMemory, Publication, TensorChecksum};
pub use row::Row;
pub use sample::{Sample, SampleId, Status, VersionRun, tokens_hash};
pub use segment::{MAX_BATCH_BYTES, Segment, decode_segment, encode_segment, read_segment, write_segment};
pub use sniff::{Format, RowReader, sniff};
pub use stream::{StreamReader, StreamWriter};
pub use view::SampleView;

pub use arrow_buffer::Buffer;
