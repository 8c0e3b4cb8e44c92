//! Rows as JSON lines: one object a line, unknown fields kept, errors with the line's number.

use crate::{Error, Result, Row};
use std::io::{BufRead, Write};

/// Reads rows from JSON lines; empty lines are skipped.
pub struct JsonlReader<R> {
    input: R,
    line: u64,
    text: String,
}

impl<R: BufRead> JsonlReader<R> {
    /// A reader at the first line.
    pub fn new(input: R) -> Self {
        Self { input, line: 0, text: String::new() }
    }

    fn next_row(&mut self) -> Result<Option<Row>> {
        loop {
            self.text.clear();
            self.line += 1;
            let read = self.input.read_line(&mut self.text).map_err(|source| match source.kind() {
                std::io::ErrorKind::InvalidData => {
                    Error::Line { line: self.line, reason: "not UTF-8".to_owned() }
                }
                _ => Error::Io { action: "cannot read", source },
            })?;
            if read == 0 {
                return Ok(None);
            }
            if !self.text.trim().is_empty() {
                return parse_row(&self.text, self.line).map(Some);
            }
        }
    }
}

impl<R: BufRead> Iterator for JsonlReader<R> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().transpose()
    }
}

fn parse_row(text: &str, line: u64) -> Result<Row> {
    let row = Row::from_json(text).map_err(|error| {
        // serde counts lines within the text, which is always the first.
        let (reason, column) = (error.to_string(), error.column());
        let reason = reason.split(" at line ").next().unwrap_or_default();
        Error::Line { line, reason: format!("column {column}: {reason}") }
    })?;
    row.sample.validate().map_err(|error| Error::Line { line, reason: error.to_string() })?;
    Ok(row)
}

/// Writes rows as JSON lines.
pub struct JsonlWriter<W> {
    output: W,
}

impl<W: Write> JsonlWriter<W> {
    /// A writer; `output` should be buffered.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// Writes one row.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Sample`] when a JSON field does not hold JSON.
    pub fn write(&mut self, row: &Row) -> Result<()> {
        let mut text = serde_json::to_string(row).map_err(|error| Error::Sample {
            id: row.sample.id(),
            field: "prompt, tools or metadata",
            expected: "JSON".to_owned(),
            got: error.to_string(),
        })?;
        text.push('\n');
        self.output.write_all(text.as_bytes()).map_err(|source| Error::Io { action: "cannot write", source })
    }

    /// Flushes and hands the output back.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        self.output.flush().map_err(|source| Error::Io { action: "cannot write", source })?;
        Ok(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_samples;

    fn read(text: &str) -> Result<Vec<Row>> {
        JsonlReader::new(text.as_bytes()).collect()
    }

    fn write(rows: &[Row]) -> String {
        let mut writer = JsonlWriter::new(Vec::new());
        for row in rows {
            writer.write(row).unwrap();
        }
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }

    #[test]
    fn random_rows_come_back_as_they_were_written() {
        let mut rows: Vec<Row> = random_samples(2, 60).into_iter().map(Row::from).collect();
        rows[3].reward = Some(0.1);
        rows[4].extra.insert("judge".to_owned(), serde_json::json!({"a": [1, 2.5, "x"]}));
        rows[5].sample.rollout_log_probs.fill(f32::NEG_INFINITY);
        let text = write(&rows);
        assert_eq!(text.lines().count(), rows.len());
        assert_eq!(read(&text).unwrap(), rows);
    }

    #[test]
    fn unknown_fields_pass_through_and_metadata_keeps_its_spelling() {
        let line = r#"{"prompt":"hi","metadata":{"b": 1.0, "a":12345678901234567890123},"mine":[1,{"x":null}],"reward":1.0}"#;
        let rows = read(line).unwrap();
        assert_eq!(rows[0].sample.prompt, "\"hi\"");
        assert_eq!(rows[0].sample.metadata.as_deref(), Some(r#"{"b": 1.0, "a":12345678901234567890123}"#));
        assert_eq!(rows[0].reward, Some(1.0));
        let text = write(&rows);
        assert!(text.contains(r#""mine":[1,{"x":null}]"#), "{text}");
        assert!(text.contains(r#"{"b": 1.0, "a":12345678901234567890123}"#), "{text}");
    }

    #[test]
    fn json_with_line_breaks_stays_on_one_line() {
        let mut row = Row::default();
        row.sample.metadata = Some("{\n  \"a\": 1\n}".to_owned());
        assert_eq!(write(&[row]).lines().count(), 1);
    }

    #[test]
    fn errors_name_the_line() {
        let error = read("{\"prompt\":\"a\"}\n\n{\"step\": \"x\"}\n").unwrap_err().to_string();
        assert!(error.starts_with("line 3: column "), "{error}");
        assert!(error.contains("invalid type: string \"x\", expected u64"), "{error}");
        assert!(!error.contains("at line 1"), "{error}");
        let error = read("{\"prompt_len\": 4}").unwrap_err().to_string();
        assert_eq!(error, "line 1: sample 0/0/0.0.0: prompt_len: expected at most the 0 tokens, got 4");
        assert!(read("{\"prompt\":").unwrap_err().to_string().starts_with("line 1: "));
    }
}
