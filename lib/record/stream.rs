//! Rows as an Arrow IPC stream, for pipes: batches as they come, and an end mark that tells a finished
//! stream from one whose writer died.

use crate::layout::{chunks, offsets_fit, sample_bytes, sample_columns, sample_fields};
use crate::view::{SampleBatch, optional, optional_strings};
use crate::{Error, MAX_BATCH_BYTES, Provenance, Result, Row, ipc};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, Float32Array, RecordBatch, StringArray};
use arrow_ipc::reader::StreamReader as ArrowReader;
use arrow_ipc::writer::StreamWriter as ArrowWriter;
use arrow_schema::{DataType, Field, Schema};
use std::io::{Read, Write};
use std::sync::Arc;

/// A continuation marker and a length of zero end every complete stream.
const END_MARK: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Writes rows to a pipe.
pub struct StreamWriter<W: Write> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
}

impl<W: Write> StreamWriter<W> {
    /// Writes the head of the stream.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn new(output: W, provenance: &Provenance) -> Result<Self> {
        let mut fields = sample_fields();
        fields.push(Field::new("reward", DataType::Float32, true));
        fields.push(Field::new("extra", DataType::Utf8, true));
        let schema = Arc::new(Schema::new_with_metadata(fields, provenance.to_metadata()));
        let writer = ArrowWriter::try_new_with_options(output, &schema, ipc::write_options()?);
        Ok(Self { writer: writer.map_err(Error::Write)?, schema })
    }

    /// Writes rows as one batch (more when they are large) and flushes, so that the reader sees them now.
    ///
    /// # Errors
    /// A sample whose fields disagree, or [`Error::Write`].
    pub fn write(&mut self, rows: &[Row]) -> Result<()> {
        for chunk in chunks(rows, MAX_BATCH_BYTES, |row| sample_bytes(&row.sample)) {
            chunk.iter().try_for_each(|row| row.sample.validate())?;
            let mut columns = sample_columns(&chunk.iter().map(|row| &row.sample).collect::<Vec<_>>())?;
            let extras: Vec<Option<String>> = chunk
                .iter()
                .map(|row| (!row.extra.is_empty()).then(|| serde_json::to_string(&row.extra)).transpose())
                .collect::<Result<_, _>>()
                .map_err(|error| Error::Write(arrow_schema::ArrowError::JsonError(error.to_string())))?;
            offsets_fit("extra", extras.iter().flatten().map(String::len))?;
            columns.push(Arc::new(chunk.iter().map(|row| row.reward).collect::<Float32Array>()));
            columns.push(Arc::new(StringArray::from_iter(extras)));
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(Error::Write)?;
            self.writer.write(&batch).map_err(Error::Write)?;
        }
        self.writer.flush().map_err(Error::Write)
    }

    /// Writes the end mark and hands the output back.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn finish(mut self) -> Result<W> {
        self.writer.finish().map_err(Error::Write)?;
        self.writer.into_inner().map_err(Error::Write)
    }
}

/// Reads rows from a pipe, batch by batch.
pub struct StreamReader<R: Read> {
    reader: ArrowReader<Tail<R>>,
    provenance: Provenance,
    ended: bool,
}

impl<R: Read> StreamReader<R> {
    /// Reads the head of the stream.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is no Arrow stream.
    pub fn new(input: R) -> Result<Self> {
        let tail = Tail { input, last: [0; 8] };
        let reader = ArrowReader::try_new(tail, None).map_err(ipc::unreadable)?;
        let provenance = Provenance::from_metadata(reader.schema().metadata());
        Ok(Self { reader, provenance, ended: false })
    }

    /// Where the stream comes from.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn next_batch(&mut self) -> Result<Option<Vec<Row>>> {
        match self.reader.next() {
            Some(batch) => rows_of(&batch.map_err(ipc::unreadable)?).map(Some),
            None if self.reader.get_ref().last == END_MARK => Ok(None),
            None => Err(ipc::corrupt("the stream ends without its end mark: its writer died")),
        }
    }
}

impl<R: Read> Iterator for StreamReader<R> {
    type Item = Result<Vec<Row>>;

    /// The rows of the next batch; nothing comes after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let batch = self.next_batch().transpose();
        self.ended = !matches!(batch, Some(Ok(_)));
        batch
    }
}

/// The rows of a batch; `reward` and `extra` need not be there.
pub(crate) fn rows_of(batch: &RecordBatch) -> Result<Vec<Row>> {
    let samples = SampleBatch::new(batch)?;
    let rewards = match batch.column_by_name("reward") {
        None => None,
        Some(column) => Some(column.as_primitive_opt::<Float32Type>().ok_or_else(|| Error::Schema {
            column: "reward".to_owned(),
            expected: "Float32".to_owned(),
            got: column.data_type().to_string(),
        })?),
    };
    let extras = batch.column_by_name("extra").map(|_| optional_strings(batch, "extra")).transpose()?;
    (0..samples.len())
        .map(|i| {
            let extra = match extras.as_ref().and_then(|extras| optional(extras, i)) {
                None => serde_json::Map::new(),
                Some(text) => serde_json::from_str(text)
                    .map_err(|error| ipc::corrupt(format!("column \"extra\", row {i}: {error}")))?,
            };
            let reward = rewards.and_then(|rewards| rewards.is_valid(i).then(|| rewards.value(i)));
            Ok(Row { sample: samples.view(i).to_sample()?, reward, extra })
        })
        .collect()
}

/// Remembers the last bytes that were read.
struct Tail<R> {
    input: R,
    last: [u8; 8],
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        let new = &buffer[read.saturating_sub(8)..read];
        self.last.rotate_left(new.len());
        self.last[8 - new.len()..].copy_from_slice(new);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_samples;

    fn rows() -> Vec<Row> {
        let mut rows: Vec<Row> = random_samples(11, 20).into_iter().map(Row::from).collect();
        rows[1].reward = Some(-1.5);
        rows[2].extra.insert("judge".to_owned(), serde_json::json!({"x": "é"}));
        rows
    }

    fn written() -> (Vec<u8>, Vec<usize>) {
        let provenance = Provenance { tool: "slime-rollout".to_owned(), ..Provenance::default() };
        let mut writer = StreamWriter::new(Vec::new(), &provenance).unwrap();
        let mut ends = vec![writer.writer.get_ref().len()];
        for chunk in rows().chunks(7) {
            writer.write(chunk).unwrap();
            ends.push(writer.writer.get_ref().len());
        }
        (writer.finish().unwrap(), ends)
    }

    fn read(bytes: &[u8]) -> Result<Vec<Row>> {
        let batches = StreamReader::new(bytes)?.collect::<Result<Vec<_>>>()?;
        Ok(batches.into_iter().flatten().collect())
    }

    #[test]
    fn rows_come_back_batch_by_batch() {
        let (bytes, _) = written();
        assert_eq!(read(&bytes).unwrap(), rows());
        let reader = StreamReader::new(bytes.as_slice()).unwrap();
        assert_eq!(reader.provenance().tool, "slime-rollout");
        assert_eq!(reader.map(|batch| batch.unwrap().len()).collect::<Vec<_>>(), [7, 7, 6]);
    }

    #[test]
    fn a_stream_cut_anywhere_is_refused_also_between_batches() {
        let (bytes, ends) = written();
        for &end in &ends {
            let message = read(&bytes[..end]).unwrap_err().to_string();
            assert!(message.contains("its writer died"), "{message}");
        }
        for len in (0..bytes.len()).step_by(13).chain(bytes.len() - 9..bytes.len()) {
            assert!(matches!(read(&bytes[..len]), Err(Error::Corrupt { .. })), "{len}");
        }
    }

    #[test]
    fn nothing_comes_after_an_error() {
        let (bytes, ends) = written();
        let mut reader = StreamReader::new(&bytes[..ends[2] - 4]).unwrap();
        assert!(reader.next().unwrap().is_ok());
        assert!(reader.next().unwrap().is_err());
        assert!(reader.next().is_none());
    }
}
