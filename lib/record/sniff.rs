//! Which format an input has, from its first bytes; and a reader of rows that does not care.

use crate::stream::{StreamReader, rows_of};
use crate::{Error, JsonlReader, Result, Row, ipc};
use arrow_buffer::Buffer;
use std::io::BufRead;

/// The formats in which rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An Arrow IPC file.
    ArrowFile,
    /// An Arrow IPC stream.
    ArrowStream,
    /// JSON lines.
    Jsonl,
    /// No bytes at all.
    Empty,
}

/// Tells the format from the first bytes (eight are enough).
///
/// # Errors
/// [`Error::Line`] when they begin nothing we read.
pub fn sniff(head: &[u8]) -> Result<Format> {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        _ if head.starts_with(&ipc::MAGIC[..6]) => Ok(Format::ArrowFile),
        _ if head.starts_with(&[0xff; 4]) => Ok(Format::ArrowStream),
        None if head.is_empty() => Ok(Format::Empty),
        Some(b'{') | None => Ok(Format::Jsonl),
        Some(&byte) => Err(Error::Line {
            line: 1,
            reason: format!(
                "expected JSON lines, an Arrow stream or an Arrow file, got {:?}",
                char::from(byte)
            ),
        }),
    }
}

/// Reads rows in whatever format they come.
pub struct RowReader {
    rows: Box<dyn Iterator<Item = Result<Row>>>,
    format: Format,
}

impl RowReader {
    /// Looks at the first bytes of `input` and reads on accordingly; an empty input has no rows.
    ///
    /// # Errors
    /// Those of [`sniff`], and what is wrong with the head of an Arrow input.
    pub fn new(mut input: impl BufRead + 'static) -> Result<Self> {
        let failed = |source| Error::Io { action: "cannot read", source };
        let format = sniff(input.fill_buf().map_err(failed)?)?;
        let rows: Box<dyn Iterator<Item = Result<Row>>> = match format {
            Format::Empty => Box::new(std::iter::empty()),
            Format::Jsonl => Box::new(JsonlReader::new(input)),
            Format::ArrowStream => Box::new(StreamReader::new(input)?.flat_map(flatten)),
            Format::ArrowFile => {
                let mut bytes = Vec::new();
                input.read_to_end(&mut bytes).map_err(failed)?;
                let (_, batches) = ipc::read_file(&Buffer::from_vec(bytes))?;
                Box::new(batches.into_iter().flat_map(|batch| flatten(rows_of(&batch))))
            }
        };
        Ok(Self { rows, format })
    }

    /// The format of the input: a tool answers in the one it was asked in.
    pub fn format(&self) -> Format {
        self.format
    }
}

fn flatten(batch: Result<Vec<Row>>) -> Box<dyn Iterator<Item = Result<Row>>> {
    match batch {
        Ok(rows) => Box::new(rows.into_iter().map(Ok)),
        Err(error) => Box::new(std::iter::once(Err(error))),
    }
}

impl Iterator for RowReader {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_samples;
    use crate::{JsonlWriter, Provenance, StreamWriter, encode_segment};

    #[test]
    fn every_format_is_read_as_the_same_rows() {
        let samples = random_samples(21, 12);
        let rows: Vec<Row> = samples.iter().cloned().map(Row::from).collect();
        let mut jsonl = JsonlWriter::new(Vec::new());
        for row in &rows {
            jsonl.write(row).unwrap();
        }
        let mut stream = StreamWriter::new(Vec::new(), &Provenance::default()).unwrap();
        stream.write(&rows).unwrap();
        for (format, bytes) in [
            (Format::Jsonl, jsonl.finish().unwrap()),
            (Format::ArrowStream, stream.finish().unwrap()),
            (Format::ArrowFile, encode_segment(&samples, &Provenance::default()).unwrap()),
        ] {
            let reader = RowReader::new(std::io::Cursor::new(bytes)).unwrap();
            assert_eq!(reader.format(), format);
            assert_eq!(reader.collect::<Result<Vec<_>>>().unwrap(), rows, "{format:?}");
        }
    }

    #[test]
    fn an_empty_input_has_no_rows() {
        assert_eq!(RowReader::new(std::io::empty()).unwrap().count(), 0);
    }

    #[test]
    fn other_input_is_refused() {
        assert!(sniff(b"PAR1").unwrap_err().to_string().contains("got 'P'"));
        assert_eq!(sniff(b" \n {").unwrap(), Format::Jsonl);
    }
}
