//! Writes rows with `reward` and `rewards` in the format they came in.

use std::io::Write;

use serde_json::{Map, Value};
use slime_cli::{Failure, Output, exit};
use slime_record::{Provenance, StreamWriter};
use slime_verifier::Scored;

use crate::read_samples::{InputRow, Source};

/// What every Arrow file of this tool says about its origin.
pub fn provenance(seed: u64) -> Provenance {
    Provenance {
        tool: "slime-reward".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        seed,
        ..Provenance::default()
    }
}

/// An output in progress.
pub struct RewardWriter {
    name: String,
    sink: Sink,
}

enum Sink {
    Lines(Output),
    Arrow(Box<StreamWriter<Output>>),
}

impl RewardWriter {
    /// Creates the output, as an Arrow stream when the input was Arrow.
    pub fn create(path: &str, is_arrow: bool, seed: u64) -> Result<Self, Failure> {
        let output = Output::create(path)?;
        let name = output.name().to_owned();
        let sink = if is_arrow {
            let writer =
                StreamWriter::new(output, &provenance(seed)).map_err(|error| failed(&name, &error))?;
            Sink::Arrow(Box::new(writer))
        } else {
            Sink::Lines(output)
        };
        Ok(Self { name, sink })
    }

    /// Writes one batch.
    pub fn write(&mut self, batch: Formatted) -> Result<(), Failure> {
        let name = &self.name;
        match (&mut self.sink, batch) {
            (Sink::Lines(output), Formatted::Lines(text)) => {
                let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
                written.map_err(|error| Failure::io(name, &error))
            }
            (Sink::Arrow(output), Formatted::Rows(rows)) => {
                output.write(&rows).map_err(|error| failed(name, &error))
            }
            _ => Err(Failure::new(exit::BUG, "rows leave in the format they came in")),
        }
    }

    /// Completes the output; a file gets its name only now.
    pub fn finish(self) -> Result<(), Failure> {
        match self.sink {
            Sink::Lines(output) => output.finish(),
            Sink::Arrow(writer) => writer.finish().map_err(|error| failed(&self.name, &error))?.finish(),
        }
    }
}

/// Rows in the form in which they leave.
pub enum Formatted {
    /// JSON lines.
    Lines(String),
    /// Rows of Arrow.
    Rows(Vec<slime_record::Row>),
}

impl Formatted {
    /// Nothing yet.
    pub fn new(is_arrow: bool) -> Self {
        if is_arrow { Self::Rows(Vec::new()) } else { Self::Lines(String::new()) }
    }

    /// Appends a row with its rewards.
    pub fn push(&mut self, row: InputRow, scored: &Scored, names: &[String]) -> Result<(), Failure> {
        match (self, row.source) {
            (Self::Lines(text), Source::Line(line)) => {
                text.push_str(&with_rewards(&line, scored, names)?);
                text.push('\n');
            }
            (Self::Rows(rows), Source::Row(mut row)) => {
                row.reward = Some(scored.reward as f32);
                row.extra.insert("rewards".to_owned(), rewards(scored, names));
                if !scored.token_rewards.is_empty() {
                    row.extra.insert(TOKEN_REWARDS.to_owned(), scored.token_rewards.clone().into());
                }
                rows.push(*row);
            }
            _ => return Err(Failure::new(exit::BUG, "rows of two formats in one input")),
        }
        Ok(())
    }
}

fn failed(name: &str, error: &slime_record::Error) -> Failure {
    Failure::write(name, error.exit_code(), error)
}

fn rewards(sample: &Scored, names: &[String]) -> Value {
    let parts = names.iter().cloned().zip(sample.parts.iter().map(|part| Value::from(part.reward)));
    Value::Object(parts.collect::<Map<_, _>>())
}

/// The key of the rewards of single tokens.
const TOKEN_REWARDS: &str = "token_rewards";

/// The line with both keys appended, its other bytes untouched; earlier rewards are replaced.
fn with_rewards(line: &str, sample: &Scored, names: &[String]) -> Result<String, Failure> {
    let reward = Value::from(sample.reward);
    let rewards = rewards(sample, names);
    let has_rewards = line.contains("\"reward\"") || line.contains("\"rewards\"") || line.contains("\\u");
    let token_rewards = (!sample.token_rewards.is_empty()).then(|| Value::from(sample.token_rewards.clone()));
    if has_rewards || token_rewards.is_some() {
        let mut fields: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| Failure::new(exit::BUG, error))?;
        fields.insert("reward".to_owned(), reward);
        fields.insert("rewards".to_owned(), rewards);
        if let Some(token_rewards) = token_rewards {
            fields.insert(TOKEN_REWARDS.to_owned(), token_rewards);
        }
        return Ok(Value::Object(fields).to_string());
    }
    let body = line.trim_end().strip_suffix('}').unwrap_or(line);
    Ok(format!("{body},\"reward\":{reward},\"rewards\":{rewards}}}"))
}
