//! Reads rows in batches: JSON lines byte for byte, or Arrow.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};

use serde_json::Value;
use slime_cli::{Failure, exit};
use slime_record::{Format, RowReader, sniff};

/// What one reading brought.
pub struct Batch {
    /// Rows in their order.
    pub rows: Vec<Result<InputRow, BadRow>>,
    /// Why nothing can be read behind them.
    pub end: Option<Failure>,
}

/// A row that cannot be read.
#[derive(Clone)]
pub struct BadRow {
    /// Where it stood, as in [`InputRow`].
    pub number: usize,
    /// What is wrong, after `line 3: `.
    pub problem: String,
}

/// How rows are put into batches.
#[derive(Clone, Copy)]
pub struct Batching {
    /// Rows of a batch; a program sees them all before its replies are awaited.
    pub num_rows: usize,
    /// Whether a group must not be cut.
    pub keeps_groups: bool,
}

/// A row on its way through.
pub struct InputRow {
    /// Where it stood, for messages: `line 3` or `row 3`, counted from 1.
    pub number: usize,
    /// The prompt as JSON.
    pub prompt: Option<String>,
    pub response: String,
    pub label: Option<String>,
    pub metadata: Option<String>,
    /// Tokens of the response, where the row has its tokens.
    pub num_tokens: Option<usize>,
    /// Where its tokens begin, where the row says so.
    pub token_offsets: Option<Vec<usize>>,
    /// Step and group, where the row has them.
    pub group: Option<(u64, u64)>,
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
pub struct Input {
    name: String,
    source: Rows,
    number: usize,
    /// The first row of the next batch, where a group's end was looked for.
    ahead: Option<Result<InputRow, BadRow>>,
    groups: HashSet<(u64, u64)>,
}

enum Rows {
    Lines(BufReader<Box<dyn Read>>),
    Arrow(RowReader),
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
        if !is_arrow && let Ok(Format::Empty) = sniff(head) {
            return Err(Failure::data(format!("{name}: empty, expected at least one row")));
        }
        let source = if is_arrow {
            Rows::Arrow(RowReader::new(buffered).map_err(|error| record_failure(&name, &error))?)
        } else {
            Rows::Lines(buffered)
        };
        Ok(Self { name, source, number: 0, ahead: None, groups: HashSet::new() })
    }

    /// What messages call the input.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether rows are Arrow's.
    pub fn is_arrow(&self) -> bool {
        matches!(self.source, Rows::Arrow(_))
    }

    /// The next rows; none at the end. A slow pipe is not waited for once a row is there, unless a group must end.
    pub fn batch(&mut self, batching: Batching) -> Batch {
        let mut rows: Vec<Result<InputRow, BadRow>> = Vec::new();
        let mut open = None;
        loop {
            let is_full = rows.len() >= batching.num_rows || !rows.is_empty() && !self.has_row();
            if is_full && !(batching.keeps_groups && open.is_some()) {
                return Batch { rows, end: None };
            }
            let row = match self.ahead.take().map_or_else(|| self.row(), |row| Ok(Some(row))) {
                Ok(Some(row)) => row,
                Ok(None) => return Batch { rows, end: None },
                Err(end) => return Batch { rows, end: Some(end) },
            };
            let Ok(InputRow { group, .. }) = row else {
                // A row that cannot be read ends no group.
                rows.push(row);
                continue;
            };
            if is_full && group != open {
                self.ahead = Some(row);
                return Batch { rows, end: None };
            }
            let is_new = batching.keeps_groups && (group != open || rows.is_empty());
            if is_new && group.is_some_and(|group| !self.groups.insert(group)) {
                let problem = "its group ended before; rows of a group must follow each other".to_owned();
                rows.push(Err(BadRow { number: row.map_or(self.number, |row| row.number), problem }));
                continue;
            }
            open = group;
            rows.push(row);
        }
    }

    /// Whether a row can be had without waiting.
    fn has_row(&self) -> bool {
        match &self.source {
            Rows::Lines(lines) => self.ahead.is_some() || lines.buffer().contains(&b'\n'),
            Rows::Arrow(_) => true,
        }
    }

    /// The next row, or `None` at the end.
    fn row(&mut self) -> Result<Option<Result<InputRow, BadRow>>, Failure> {
        let Self { name, source, number, .. } = self;
        match source {
            Rows::Lines(lines) => loop {
                let mut line = Vec::new();
                *number += 1;
                if lines.read_until(b'\n', &mut line).map_err(|error| Failure::io(&*name, &error))? == 0 {
                    return Ok(None);
                }
                let bad = |problem| BadRow { number: *number, problem };
                let Ok(text) = std::str::from_utf8(&line) else {
                    return Ok(Some(Err(bad("not UTF-8".to_owned()))));
                };
                let text = text.trim_end_matches(['\n', '\r']);
                // Some editors begin a file with the mark of its byte order.
                let text = if *number == 1 { text.trim_start_matches('\u{feff}') } else { text };
                if !text.trim().is_empty() {
                    return Ok(Some(parse_line(text, *number).map_err(bad)));
                }
            },
            Rows::Arrow(rows) => {
                let Some(row) = rows.next() else { return Ok(None) };
                // What follows a broken batch cannot be found.
                let row = row.map_err(|error| record_failure(name, &error))?;
                *number += 1;
                Ok(Some(Ok(from_arrow(row, *number))))
            }
        }
    }
}

fn from_arrow(row: slime_record::Row, number: usize) -> InputRow {
    let sample = &row.sample;
    InputRow {
        number,
        prompt: Some(sample.prompt.clone()),
        response: sample.response.clone(),
        label: sample.label.clone(),
        metadata: sample.metadata.clone(),
        num_tokens: Some(sample.response_len()),
        token_offsets: row.extra.get(TOKEN_OFFSETS).and_then(offsets),
        group: Some((sample.step, u64::from(sample.group))),
        source: Source::Row(Box::new(row)),
    }
}

/// The key of where the response's tokens begin in it, in bytes.
const TOKEN_OFFSETS: &str = "token_offsets";

fn offsets(value: &Value) -> Option<Vec<usize>> {
    serde_json::from_value(value.clone()).ok()
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
    let token_offsets = match fields.get(TOKEN_OFFSETS) {
        None | Some(Value::Null) => None,
        Some(value) => Some(offsets(value).ok_or("token_offsets: expected a list of counts")?),
    };
    let number_of = |key: &str| fields.get(key).and_then(Value::as_u64);
    Ok(InputRow {
        number,
        prompt: fields.get("prompt").filter(|prompt| !prompt.is_null()).map(Value::to_string),
        response,
        label,
        metadata,
        num_tokens: num_tokens.or(token_offsets.as_ref().map(Vec::len)),
        token_offsets,
        group: number_of("group").map(|group| (number_of("step").unwrap_or(0), group)),
        source: Source::Line(text.to_owned()),
    })
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
