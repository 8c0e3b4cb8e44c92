//! Rows of a JSONL file: it is indexed once, rows are read when they are drawn. A compressed one is unpacked first, into
//! a file without a name, since nothing finds a row in the middle of a zstd stream.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::rows::Rows;
use crate::{Error, Result};

/// Where a row lies in the file.
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    bytes: u64,
    line: u64,
}

/// The rows of a JSONL file that are not blank.
#[derive(Debug)]
pub(crate) struct JsonlRows {
    path: PathBuf,
    file: File,
    places: Vec<Place>,
}

impl JsonlRows {
    /// Indexes `file`, which messages call `path`.
    pub fn open(path: &Path, file: File) -> Result<Self> {
        let places = index(&file).map_err(Error::io(path))?;
        Ok(Self { path: path.to_owned(), file, places })
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
        self.places.len()
    }

    fn number(&self, row: usize) -> u64 {
        self.places[row].line
    }

    fn unit(&self) -> &'static str {
        "line"
    }

    fn read(&self, row: usize) -> Result<Map<String, Value>> {
        let place = self.places[row];
        let mut bytes = vec![0; place.bytes as usize];
        self.file.read_exact_at(&mut bytes, place.offset).map_err(Error::io(&self.path))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Row {
            path: self.path.clone(),
            unit: self.unit(),
            row: place.line,
            reason: json_reason(&error),
        })
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

/// The places of all rows that are not blank.
fn index(file: &File) -> std::io::Result<Vec<Place>> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut places = Vec::new();
    let (mut offset, mut line, mut text) = (0, 0, Vec::new());
    loop {
        text.clear();
        let bytes = reader.read_until(b'\n', &mut text)? as u64;
        if bytes == 0 {
            return Ok(places);
        }
        line += 1;
        let mark: u64 = if line == 1 && text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        if !text[mark as usize..].trim_ascii().is_empty() {
            places.push(Place { offset: offset + mark, bytes: bytes - mark, line });
        }
        offset += bytes;
    }
}
