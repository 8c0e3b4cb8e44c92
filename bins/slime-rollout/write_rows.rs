//! Rows of any fields as JSON lines.

use std::io::Write;

use serde_json::{Map, Value};
use slime_cli::{Failure, Output};

/// Writes JSON objects, one a line.
pub struct RowWriter {
    output: Output,
}

impl RowWriter {
    /// `-` is stdout.
    pub fn create(output: &str) -> Result<Self, Failure> {
        Ok(Self { output: Output::create(output)? })
    }

    /// One line, flushed so that a reader sees it now.
    pub fn write(&mut self, fields: &Map<String, Value>) -> Result<(), Failure> {
        let line = serde_json::to_string(fields).map_err(Failure::data)?;
        writeln!(self.output, "{line}")
            .and_then(|()| self.output.flush())
            .map_err(|error| Failure::io(self.output.name(), &error))
    }

    /// See [`Output::finish`].
    pub fn finish(self) -> Result<(), Failure> {
        self.output.finish()
    }
}
