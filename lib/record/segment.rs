//! Segments: samples as one sealed Arrow file, read in place from mapped bytes.

use crate::layout::{chunks, sample_bytes, sample_columns, sample_schema};
use crate::view::{SampleBatch, SampleView};
use crate::{Error, Provenance, Result, Sample, SampleId, ipc};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Batches of a stream stay below this size, so that readers can take it piece by piece.
pub const MAX_BATCH_BYTES: usize = 256 << 20;

/// Segments are written in batches of about this size: a batch goes through its columns to the file while it is in a
/// CPU's caches, which takes little more than one copy of the whole.
const BATCH_BYTES: usize = 2 << 20;

/// The bytes of a segment file.
///
/// # Errors
/// A sample whose fields disagree, or one too large for Arrow's 32-bit offsets.
pub fn encode_segment(samples: &[Sample], provenance: &Provenance) -> Result<Vec<u8>> {
    encode_in_batches(samples, provenance, BATCH_BYTES)
}

/// Writes a segment file batch by batch, so that the disk is busy while later batches are encoded. The same samples give
/// the same bytes as [`encode_segment`].
///
/// # Errors
/// As [`encode_segment`]; [`Error::Write`] when `out` refuses.
pub fn write_segment(out: impl Write, samples: &[Sample], provenance: &Provenance) -> Result<()> {
    write_in_batches(out, samples, provenance, BATCH_BYTES)
}

fn encode_in_batches(samples: &[Sample], provenance: &Provenance, most: usize) -> Result<Vec<u8>> {
    let total: usize = samples.iter().map(sample_bytes).sum();
    // Headers and padding come on top; a guess that is too small costs one more allocation.
    let mut bytes = Vec::with_capacity(total + total / 16 + (64 << 10));
    write_in_batches(&mut bytes, samples, provenance, most)?;
    Ok(bytes)
}

fn write_in_batches(out: impl Write, samples: &[Sample], provenance: &Provenance, most: usize) -> Result<()> {
    let schema = Arc::new(sample_schema(provenance));
    let batches = chunks(samples, most, sample_bytes).into_iter().map(|chunk| {
        chunk.iter().try_for_each(Sample::validate)?;
        let columns = sample_columns(&chunk.iter().collect::<Vec<_>>())?;
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(Error::Write)
    });
    ipc::write_file_to(out, &schema, batches)
}

/// Opens the bytes of a segment file; nothing is copied, columns are views of `file`.
///
/// Mapped files come in as `Buffer::from(bytes::Bytes::from_owner(map))`.
///
/// # Errors
/// [`Error::Corrupt`] when the bytes are cut short, altered or not Arrow; [`Error::Schema`] when the
/// columns are not those of samples.
pub fn decode_segment(file: impl Into<Buffer>) -> Result<Segment> {
    let (schema, batches) = ipc::read_file(&file.into())?;
    let provenance = Provenance::from_metadata(schema.metadata());
    let batches = batches.iter().map(SampleBatch::new).collect::<Result<Vec<_>>>()?;
    let mut ends = Vec::with_capacity(batches.len());
    let mut len = 0;
    for batch in &batches {
        len += batch.len();
        ends.push(len);
    }
    Ok(Segment { provenance, batches, ends, len })
}

/// Reads a segment file into memory and opens it.
///
/// # Errors
/// Those of [`decode_segment`] and of reading, with the file's name.
pub fn read_segment(path: &Path) -> Result<Segment> {
    let bytes =
        std::fs::read(path).map_err(|source| Error::Io { action: "cannot read", source }.in_file(path))?;
    decode_segment(bytes).map_err(|error| error.in_file(path))
}

/// An open segment.
#[derive(Debug)]
pub struct Segment {
    provenance: Provenance,
    batches: Vec<SampleBatch>,
    /// The number of samples in all batches up to and with this one.
    ends: Vec<usize>,
    len: usize,
}

impl Segment {
    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the file comes from.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// A look at sample `i` in place.
    ///
    /// # Panics
    /// When `i` is not below [`Segment::len`], as slices do.
    pub fn view(&self, i: usize) -> SampleView<'_> {
        assert!(i < self.len, "sample {i} of a segment of {}", self.len);
        let batch = self.ends.partition_point(|&end| end <= i);
        let start = batch.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.batches[batch].view(i - start)
    }

    /// The name of sample `i`.
    pub fn id(&self, i: usize) -> SampleId {
        self.view(i).id()
    }

    /// A copy of sample `i`.
    ///
    /// # Errors
    /// [`Error::Status`] when its status is no word of ours, [`Error::Sample`] when its fields disagree.
    pub fn sample(&self, i: usize) -> Result<Sample> {
        self.view(i).to_sample()
    }

    /// All samples in place, in file order.
    pub fn views(&self) -> impl Iterator<Item = SampleView<'_>> {
        self.batches.iter().flat_map(|batch| (0..batch.len()).map(|i| batch.view(i)))
    }

    /// Copies of all samples.
    ///
    /// # Errors
    /// Those of [`Segment::sample`].
    pub fn samples(&self) -> Result<Vec<Sample>> {
        self.views().map(|view| view.to_sample()).collect()
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
