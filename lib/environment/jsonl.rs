//! Rows of a JSONL file: it is indexed once, rows are read when they are drawn. A compressed one is unpacked first, into
//! a file without a name, since nothing finds a row in the middle of a zstd stream.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::rows::Rows;
use crate::{Error, Result};

/// What is read at once.
const READ_BYTES: usize = 64 << 10;
/// How some editors begin a UTF-8 file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Rows between two marks: what is read to find one, against what an index of a large file takes (16 bytes a mark).
const STRIDE: usize = 32;

/// Where a row begins in the file, and its line.
#[derive(Debug, Clone, Copy)]
struct Mark {
    offset: u64,
    line: u64,
}

/// The rows of a JSONL file that are not blank.
#[derive(Debug)]
pub(crate) struct JsonlRows {
    path: PathBuf,
    file: File,
    /// Of every [`STRIDE`]th row.
    marks: Vec<Mark>,
    len: usize,
}

impl JsonlRows {
    /// Indexes `file`, which messages call `path`.
    pub fn open(path: &Path, file: File) -> Result<Self> {
        let (mut marks, mut len) = (Vec::new(), 0);
        let mut lines = Lines::new(&file, Mark { offset: 0, line: 1 });
        while let Some(mark) = lines.next_row().map_err(Error::io(path))? {
            if len % STRIDE == 0 {
                marks.push(mark);
            }
            len += 1;
        }
        Ok(Self { path: path.to_owned(), file, marks, len })
    }

    /// The same for a zstd stream.
    pub fn open_zst(path: &Path, file: File) -> Result<Self> {
        let mut unpacked = tempfile::tempfile().map_err(Error::io(&std::env::temp_dir()))?;
        let mut writer = BufWriter::with_capacity(1 << 20, &unpacked);
        slime_archive::unpack_stream(file, &mut writer).map_err(|source| match source.kind() {
            std::io::ErrorKind::StorageFull => Error::Io { path: std::env::temp_dir(), source },
            _ => Error::File { path: path.to_owned(), reason: format!("not a whole zstd stream: {source}") },
        })?;
        writer.into_inner().map_err(|error| Error::io(&std::env::temp_dir())(error.into_error()))?;
        unpacked.rewind().map_err(Error::io(path))?;
        Self::open(path, unpacked)
    }
}

impl Rows for JsonlRows {
    fn len(&self) -> usize {
        self.len
    }

    fn unit(&self) -> &'static str {
        "line"
    }

    fn read(&self, row: usize) -> Result<(u64, Map<String, Value>)> {
        let mut lines = Lines::new(&self.file, self.marks[row / STRIDE]);
        let mut found = None;
        for _ in 0..=row % STRIDE {
            found = lines.next_row().map_err(Error::io(&self.path))?;
        }
        let line = found.map_or(0, |mark| mark.line);
        let object = serde_json::from_slice(lines.text()).map_err(|error| Error::Row {
            path: self.path.clone(),
            unit: self.unit(),
            row: line,
            reason: json_reason(&error),
        })?;
        Ok((line, object))
    }

    fn keys(&self, row: &Map<String, Value>) -> Vec<String> {
        row.keys().cloned().collect()
    }
}

/// serde counts lines within the row, where there is only one.
fn json_reason(error: &serde_json::Error) -> String {
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    format!("column {}: {reason}", error.column())
}

/// The rows of a file from a mark on; the open file has no position of its own, so threads do not meet.
struct Lines<'a> {
    reader: BufReader<At<'a>>,
    next: Mark,
    line: Vec<u8>,
    /// Bytes of a mark at the beginning of the file that are not text.
    num_skipped: usize,
}

struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let num_read = self.file.read_at(bytes, self.offset)?;
        self.offset += num_read as u64;
        Ok(num_read)
    }
}

impl<'a> Lines<'a> {
    fn new(file: &'a File, next: Mark) -> Self {
        let reader = BufReader::with_capacity(READ_BYTES, At { file, offset: next.offset });
        Self { reader, next, line: Vec::new(), num_skipped: 0 }
    }

    /// Goes to the next row that is not blank; none at the end.
    fn next_row(&mut self) -> std::io::Result<Option<Mark>> {
        loop {
            self.line.clear();
            let num_bytes = self.reader.read_until(b'\n', &mut self.line)?;
            if num_bytes == 0 {
                return Ok(None);
            }
            let here = self.next;
            self.next = Mark { offset: here.offset + num_bytes as u64, line: here.line + 1 };
            self.num_skipped = if here.offset == 0 && self.line.starts_with(BYTE_ORDER_MARK) { 3 } else { 0 };
            if !self.text().trim_ascii().is_empty() {
                return Ok(Some(here));
            }
        }
    }

    /// The row that was gone to.
    fn text(&self) -> &[u8] {
        &self.line[self.num_skipped..]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn rows_of(text: &[u8]) -> JsonlRows {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        JsonlRows::open(Path::new("a.jsonl"), file).unwrap()
    }

    #[test]
    fn every_row_is_found_from_the_mark_before_it() {
        let mut text = b"\xef\xbb\xbf".to_vec();
        for row in 0..1000 {
            let blank = if row % 7 == 3 { " \n" } else { "" };
            text.extend(format!("{blank}{{\"a\": {row}}}\n").into_bytes());
        }
        let rows = rows_of(&text);
        assert_eq!((rows.len(), rows.marks.len()), (1000, 1000_usize.div_ceil(STRIDE)));
        for row in (0..1000).rev() {
            let (line, object) = rows.read(row).unwrap();
            let num_blank = if row < 3 { 0 } else { (row - 3) / 7 + 1 };
            assert_eq!((object["a"].as_u64(), line), (Some(row as u64), (row + num_blank + 1) as u64));
        }
        assert_eq!(rows_of(b"\n \n").len(), 0);
    }
}
