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
    pub fn write(
        &mut self,
        batch: Vec<InputRow>,
        scored: &[Scored],
        names: &[String],
    ) -> Result<(), Failure> {
        let name = &self.name;
        match &mut self.sink {
            Sink::Lines(output) => {
                for (row, sample) in batch.iter().zip(scored) {
                    if let Source::Line(line) = &row.source {
                        let text = with_rewards(line, sample, names)?;
                        writeln!(output, "{text}").map_err(|error| Failure::io(name, &error))?;
                    }
                }
                output.flush().map_err(|error| Failure::io(name, &error))
            }
            Sink::Arrow(output) => {
                let mut rows = Vec::with_capacity(batch.len());
                for (row, sample) in batch.into_iter().zip(scored) {
                    if let Source::Row(mut row) = row.source {
                        row.reward = Some(sample.reward as f32);
                        row.extra.insert("rewards".to_owned(), rewards(sample, names));
                        if !sample.token_rewards.is_empty() {
                            row.extra.insert(TOKEN_REWARDS.to_owned(), sample.token_rewards.clone().into());
                        }
                        rows.push(*row);
                    }
                }
                output.write(&rows).map_err(|error| failed(name, &error))
            }
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
