//! Rows with "tokens" from JSON lines or Arrow, every other field kept as it is.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_record::{Format, Row, RowReader};

use crate::failure;

/// A row to be scored.
pub struct TokenRow {
    pub tokens: Vec<u32>,
    /// All fields, "tokens" among them.
    pub fields: Map<String, Value>,
}

/// The rows of `input`, which is a file or `-`; the first bytes tell the format.
pub fn read_tokens(input: &str) -> Result<Box<dyn Iterator<Item = Result<TokenRow, Failure>>>, Failure> {
    let mut reader: Box<dyn BufRead> = match input {
        "-" => Box::new(BufReader::new(stdin())),
        path => Box::new(BufReader::new(File::open(path).map_err(|error| Failure::open(path, &error))?)),
    };
    let name = if input == "-" { "stdin".to_owned() } else { input.to_owned() };
    let head = reader.fill_buf().map_err(|error| Failure::io(&name, &error))?;
    match slime_record::sniff(head).map_err(|error| error.in_file(&name)).map_err(failure!())? {
        Format::Empty => Err(Failure::data(format!("{name}: empty"))),
        Format::Jsonl => Ok(Box::new(lines(reader, name))),
        Format::ArrowFile | Format::ArrowStream => {
            let rows = RowReader::new(reader).map_err(|error| error.in_file(&name)).map_err(failure!())?;
            Ok(Box::new(
                rows.map(move |row| {
                    from_row(&row.map_err(|error| error.in_file(&name)).map_err(failure!())?)
                }),
            ))
        }
    }
}

fn lines(reader: Box<dyn BufRead>, name: String) -> impl Iterator<Item = Result<TokenRow, Failure>> {
    reader.lines().enumerate().filter_map(move |(i, line)| match line {
        Ok(line) if line.trim().is_empty() => None,
        Ok(line) => Some(
            from_line(&line).map_err(|reason| Failure::data(format!("{name}: line {}: {reason}", i + 1))),
        ),
        Err(error) => Some(Err(Failure::io(&name, &error))),
    })
}

fn from_line(line: &str) -> Result<TokenRow, String> {
    let fields: Map<String, Value> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let tokens = fields.get("tokens").ok_or_else(|| {
        let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
        format!("no key \"tokens\", got {}", keys.join(", "))
    })?;
    let tokens: Vec<u32> =
        serde_json::from_value(tokens.clone()).map_err(|error| format!("\"tokens\": {error}"))?;
    if let Some(prompt_len) = fields.get("prompt_len")
        && prompt_len.as_u64().is_none_or(|len| len > tokens.len() as u64)
    {
        return Err(format!("prompt_len: expected at most {} tokens, got {prompt_len}", tokens.len()));
    }
    if tokens.is_empty() {
        return Err("\"tokens\" is empty".to_owned());
    }
    Ok(TokenRow { tokens, fields })
}

fn from_row(row: &Row) -> Result<TokenRow, Failure> {
    match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => Ok(TokenRow { tokens: row.sample.tokens.clone(), fields }),
        Ok(other) => Err(Failure::new(70, format!("a row became {other}"))),
        Err(error) => Err(Failure::data(error)),
    }
}
