//! Reads rows in batches: JSON lines byte for byte, or Arrow.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};

use serde_json::Value;
use slime_cli::{Failure, exit};
use slime_record::{Format, RowReader, sniff};

/// Rows that are scored together; a program sees them all before its replies are awaited.
const BATCH_ROWS: usize = 256;

/// A row on its way through.
pub struct InputRow {
    /// Where it stood, for messages: `line 3` or `row 3`, counted from 1.
    pub number: usize,
    pub response: String,
    pub label: Option<String>,
    pub metadata: Option<String>,
    /// Tokens of the response, where the row has its tokens.
    pub num_tokens: Option<usize>,
    pub source: Source,
}

/// What is written back.
pub enum Source {
    /// The line as it was.
    Line(String),
    /// A sample of an Arrow input.
    Row(Box<slime_record::Row>),
}

/// An opened input.
pub enum Input {
    Lines { name: String, lines: BufReader<Box<dyn Read>>, number: usize },
    Rows { name: String, rows: RowReader, number: usize },
}

impl Input {
    /// Opens a file or stdin and looks at its first bytes.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let (name, bytes): (&str, Box<dyn Read>) = if path == "-" {
            ("stdin", Box::new(stdin()))
        } else {
            (path, Box::new(File::open(path).map_err(|error| Failure::open(path, &error))?))
        };
        let name = name.to_owned();
        let mut buffered = BufReader::with_capacity(1 << 16, bytes);
        let head = buffered.fill_buf().map_err(|error| Failure::io(&name, &error))?;
        let is_arrow = head.starts_with(b"ARROW1") || head.starts_with(&[0xff; 4]);
        if is_arrow {
            let rows = RowReader::new(buffered).map_err(|error| record_failure(&name, &error))?;
            return Ok(Self::Rows { name, rows, number: 0 });
        }
        if let Ok(Format::Empty) = sniff(head) {
            return Err(Failure::data(format!("{name}: empty, expected at least one row")));
        }
        Ok(Self::Lines { name, lines: buffered, number: 0 })
    }

    /// What messages call the input.
    pub fn name(&self) -> &str {
        match self {
            Self::Lines { name, .. } | Self::Rows { name, .. } => name,
        }
    }

    /// What messages call one row.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Lines { .. } => "line",
            Self::Rows { .. } => "row",
        }
    }

    /// Whether rows leave as Arrow.
    pub fn is_arrow(&self) -> bool {
        matches!(self, Self::Rows { .. })
    }

    /// The next rows; none at the end. A slow pipe is not waited for once a row is there.
    pub fn batch(&mut self) -> Result<Vec<InputRow>, Failure> {
        let mut batch = Vec::new();
        match self {
            Self::Lines { name, lines, number } => {
                while batch.len() < BATCH_ROWS && (batch.is_empty() || lines.buffer().contains(&b'\n')) {
                    let mut line = String::new();
                    *number += 1;
                    let read = lines.read_line(&mut line).map_err(|error| match error.kind() {
                        std::io::ErrorKind::InvalidData => {
                            Failure::data(format!("{name}: line {number}: not UTF-8"))
                        }
                        _ => Failure::io(&*name, &error),
                    })?;
                    if read == 0 {
                        break;
                    }
                    let text = line.trim_end_matches(['\n', '\r']);
                    if !text.trim().is_empty() {
                        batch.push(
                            parse_line(text, *number).map_err(|problem| {
                                Failure::data(format!("{name}: line {number}: {problem}"))
                            })?,
                        );
                    }
                }
            }
            Self::Rows { name, rows, number } => {
                for row in rows.take(BATCH_ROWS) {
                    let row = row.map_err(|error| record_failure(name, &error))?;
                    *number += 1;
                    batch.push(InputRow {
                        number: *number,
                        response: row.sample.response.clone(),
                        label: row.sample.label.clone(),
                        metadata: row.sample.metadata.clone(),
                        num_tokens: Some(row.sample.response_len()),
                        source: Source::Row(Box::new(row)),
                    });
                }
            }
        }
        Ok(batch)
    }
}

fn record_failure(name: &str, error: &slime_record::Error) -> Failure {
    let mut failure = Failure::from_error(exit::DATA, error);
    failure.message = format!("{name}: {}", failure.message);
    failure
}

fn parse_line(text: &str, number: usize) -> Result<InputRow, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        format!("column {}: {}", error.column(), reason.split(" at line ").next().unwrap_or_default())
    })?;
    let Value::Object(fields) = value else { return Err("expected an object".to_owned()) };
    let response = match fields.get("response") {
        Some(Value::String(response)) => response.clone(),
        Some(other) => return Err(format!("response: expected a string, got {}", kind(other))),
        None => {
            let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
            return Err(format!("no response; the row has {}", keys.join(", ")));
        }
    };
    let label = match fields.get("label") {
        None | Some(Value::Null) => None,
        Some(Value::String(label)) => Some(label.clone()),
        Some(other) => Some(other.to_string()),
    };
    let metadata = fields.get("metadata").filter(|metadata| !metadata.is_null()).map(Value::to_string);
    // A mask has one number for each token of the response.
    let num_tokens = fields.get("loss_mask").and_then(Value::as_array).map(Vec::len);
    Ok(InputRow { number, response, label, metadata, num_tokens, source: Source::Line(text.to_owned()) })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
