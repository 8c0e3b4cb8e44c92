//! What the machines need to know of sealed segments and columns, and the seam to the file formats.

use std::io::Write;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use slime_record::{Sample, SampleId, VersionRun};

use crate::{Error, Result};

/// What the machines know of one sample; the rows themselves stay mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleDigest {
    /// Identity.
    pub id: SampleId,
    /// Identity of the prompt.
    pub prompt_id: String,
    /// xxh3-64 of its tokens.
    pub tokens_hash: u64,
    /// Trained response tokens (loss mask set) per weight version, oldest position first.
    pub trained: Vec<VersionRun>,
    /// All response tokens.
    pub response_len: u32,
    /// Generation failed: the group is asked for again.
    pub failed: bool,
    /// It was cut off at the longest response.
    pub truncated: bool,
}

/// What a segment says about itself as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentHeader {
    /// Step of all its samples.
    pub step: u64,
    /// Trainer epoch on whose line its weight versions lie.
    pub epoch: u64,
    /// Replica that generated it.
    pub replica: u32,
    /// Incarnation of that replica.
    pub incarnation: u64,
}

/// A segment without its tokens: rows of a group are contiguous and a group lies in one segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDigest {
    /// The whole.
    pub header: SegmentHeader,
    /// The rows, in order.
    pub rows: Vec<SampleDigest>,
}

/// One value of a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnRow {
    /// Identity of the sample.
    pub id: SampleId,
    /// xxh3-64 of the tokens it was computed for.
    pub tokens_hash: u64,
    /// The value (for the filters).
    pub value: f32,
    /// What else the writer has to say about it, as JSON text (a reward's parts).
    pub details: Option<String>,
}

impl ColumnRow {
    /// What was computed about a sample.
    pub fn about(sample: &Sample, value: f32) -> Self {
        Self { id: sample.id(), tokens_hash: sample.tokens_hash(), value, details: None }
    }
}

/// A column file computed over one segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnDigest {
    /// Path of the segment it was computed over.
    pub segment: String,
    /// One row for each row of that segment, in its order.
    pub rows: Vec<ColumnRow>,
}

/// The seam to the file formats: Arrow in the product, JSON digests in the simulator.
pub trait Format {
    /// A sample as the driver generates it.
    type Row: Clone;

    /// Writes a segment; the same header and rows give the same bytes.
    fn write(&self, header: &SegmentHeader, rows: &[Self::Row], out: &mut dyn Write) -> Result<()>;

    /// Bytes a row will take, roughly: the size limit of a segment is checked against it.
    fn row_bytes(&self, row: &Self::Row) -> usize;

    /// Reads the digest of a sealed segment.
    fn digest(&self, bytes: &[u8]) -> Result<SegmentDigest>;

    /// Encodes a column file.
    fn encode_column(&self, name: &str, column: &ColumnDigest) -> Result<Vec<u8>>;

    /// Reads a column file.
    fn column(&self, name: &str, bytes: &[u8]) -> Result<ColumnDigest>;
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("protocol records have string keys and finite numbers")
}

pub(crate) fn from_json<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Broken { path: path.to_owned(), problem: error.to_string() })
}
