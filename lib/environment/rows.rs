//! The seam between the formats of prompt files and what is made of their rows.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Map, Value};

use crate::jsonl::JsonlRows;
use crate::parquet::ParquetRows;
use crate::{Error, Result};

/// How a Parquet file begins.
const PARQUET: [u8; 4] = *b"PAR1";
/// How a zstd stream begins.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The rows of an open file, each an object, read when they are asked for.
pub(crate) trait Rows: std::fmt::Debug + Send + Sync {
    /// How many.
    fn len(&self) -> usize;

    /// What a row's number counts: lines, or rows.
    fn unit(&self) -> &'static str;

    /// One row, and what people call it: its line or number, from 1.
    fn read(&self, row: usize) -> Result<(u64, Map<String, Value>)>;

    /// The keys a row could have been read with, for the message about one it lacks.
    fn keys(&self, row: &Map<String, Value>) -> Vec<String>;
}

/// Opens a file by its first bytes, so that stdin needs no name; a name that promises something else is an error.
///
/// `columns` are the keys that are wanted of a row.
pub(crate) fn open(path: &Path, columns: &[&str]) -> Result<Box<dyn Rows>> {
    let file = File::open(path).map_err(Error::io(path))?;
    let mut head = [0; 4];
    let len = file.read_at(&mut head, 0).map_err(Error::io(path))?;
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let wrong = |reason: &str| Err(Error::File { path: path.to_owned(), reason: reason.to_owned() });
    match (head, &*extension) {
        (PARQUET, _) => Ok(Box::new(ParquetRows::open(path, file, columns)?)),
        (ZSTD, _) => Ok(Box::new(JsonlRows::open_zst(path, file)?)),
        (_, "parquet") => wrong("not a Parquet file: it does not begin with PAR1"),
        (_, "zst") => wrong("not a zstd stream: it does not begin with 28 b5 2f fd"),
        _ if len > 0 && head[..len].contains(&0) => wrong(
            "neither JSON lines, zstd nor Parquet\nhint: prompts are .jsonl, .jsonl.zst or .parquet files",
        ),
        _ => Ok(Box::new(JsonlRows::open(path, file)?)),
    }
}
