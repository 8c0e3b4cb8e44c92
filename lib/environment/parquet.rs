//! Rows of a Parquet file: the footer is read once, rows are decoded in small blocks when they are drawn. Nested values
//! (chat messages as a list of structs) come as JSON; of a file only the columns that are asked for are touched.
//!
//! Format: <https://parquet.apache.org/docs/file-format/>. Nulls inside structs, with which a table fills up messages
//! that lack a key, are left out, so a row reads as it did in the JSON it was made from.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow_json::LineDelimitedWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use serde_json::{Map, Value};

use crate::rows::Rows;
use crate::{Error, Result};

/// Rows decoded at once: neighbours are wanted by evaluations and files in order, and cost a shuffled walk little.
const BLOCK_ROWS: usize = 16;

/// The block that was read last: its first row, and the rows.
type Block = (usize, Vec<Map<String, Value>>);

/// An open Parquet file.
#[derive(Debug)]
pub(crate) struct ParquetRows {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    columns: Vec<String>,
    /// The first row of each row group, and behind the last the number of rows.
    group_starts: Vec<usize>,
    projection: ProjectionMask,
    block: Mutex<Option<Block>>,
}

impl ParquetRows {
    /// Reads the footer of `file`, of which `wanted` columns are read.
    pub fn open(path: &Path, file: File, wanted: &[&str]) -> Result<Self> {
        let wrong = |reason: String| Error::File { path: path.to_owned(), reason };
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
            .map_err(|error| wrong(format!("not a whole Parquet file: {error}")))?;
        let mut group_starts = vec![0];
        for group in metadata.metadata().row_groups() {
            let rows = usize::try_from(group.num_rows())
                .map_err(|_| wrong(format!("a row group of {} rows", group.num_rows())))?;
            group_starts.push(group_starts.last().copied().unwrap_or_default() + rows);
        }
        let columns: Vec<String> =
            metadata.schema().fields().iter().map(|field| field.name().clone()).collect();
        let is_wanted = |name: &str| wanted.contains(&name);
        let roots = columns.iter().enumerate().filter(|(_, name)| is_wanted(name)).map(|(i, _)| i);
        let projection = ProjectionMask::roots(metadata.parquet_schema(), roots.collect::<Vec<_>>());
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            columns,
            group_starts,
            projection,
            block: Mutex::new(None),
        })
    }

    /// Decodes the block of `row`.
    fn decode(&self, row: usize) -> Result<Block, String> {
        let group = self.group_starts.partition_point(|start| *start <= row) - 1;
        let (start, end) = (self.group_starts[group], self.group_starts[group + 1]);
        let first = start + (row - start) / BLOCK_ROWS * BLOCK_ROWS;
        let len = BLOCK_ROWS.min(end - first);
        let file = self.file.try_clone().map_err(|error| error.to_string())?;
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_row_groups(vec![group])
            .with_projection(self.projection.clone())
            .with_row_selection(RowSelection::from(vec![
                RowSelector::skip(first - start),
                RowSelector::select(len),
            ]))
            .with_batch_size(len)
            .build()
            .map_err(|error| error.to_string())?;
        let mut text = LineDelimitedWriter::new(Vec::new());
        for batch in reader {
            let batch = batch.map_err(|error| error.to_string())?;
            text.write(&batch).map_err(|error| error.to_string())?;
        }
        text.finish().map_err(|error| error.to_string())?;
        let lines = text.into_inner();
        let rows = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let rows: Vec<_> =
            rows.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        if rows.len() != len {
            return Err(format!("expected {len} rows of row group {group}, got {}", rows.len()));
        }
        Ok((first, rows))
    }
}

impl Rows for ParquetRows {
    fn len(&self) -> usize {
        self.group_starts.last().copied().unwrap_or_default()
    }

    fn unit(&self) -> &'static str {
        "row"
    }

    fn read(&self, row: usize) -> Result<(u64, Map<String, Value>)> {
        let number = row as u64 + 1;
        // A thread that panicked here has left a whole block or none.
        let mut block = self.block.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((first, rows)) = &*block
            && let Some(found) = row.checked_sub(*first).and_then(|i| rows.get(i))
        {
            return Ok((number, found.clone()));
        }
        let (first, rows) = self.decode(row).map_err(|reason| Error::Row {
            path: self.path.clone(),
            unit: self.unit(),
            row: number,
            reason,
        })?;
        let found = rows.get(row - first).cloned().unwrap_or_default();
        *block = Some((first, rows));
        Ok((number, found))
    }

    fn keys(&self, _row: &Map<String, Value>) -> Vec<String> {
        self.columns.clone()
    }
}

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
