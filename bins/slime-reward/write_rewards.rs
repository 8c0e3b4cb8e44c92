//! Writes rows with `reward` and `rewards`: to stdout as they come, to a file under a temporary name first.

use std::fs::{self, File};
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;

use serde_json::{Map, Value};
use slime_cli::{Failure, exit};
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
pub struct Output {
    name: String,
    sink: Sink,
    /// Where a file is written before it gets its name.
    temporary: Option<(PathBuf, PathBuf)>,
}

enum Sink {
    Lines(BufWriter<Box<dyn Write>>),
    Arrow(Box<StreamWriter<BufWriter<Box<dyn Write>>>>),
    Finished,
}

impl Output {
    /// Creates the output, as an Arrow stream when the input was Arrow.
    pub fn create(path: &str, is_arrow: bool, seed: u64) -> Result<Self, Failure> {
        let (name, bytes, temporary): (&str, Box<dyn Write>, _) = if path == "-" {
            ("stdout", Box::new(stdout()), None)
        } else {
            let temporary = PathBuf::from(format!("{path}.tmp.{}", std::process::id()));
            let file = File::create(&temporary).map_err(|error| Failure::create(path, &error))?;
            (path, Box::new(file), Some((temporary, PathBuf::from(path))))
        };
        let name = name.to_owned();
        let bytes = BufWriter::new(bytes);
        let sink = if is_arrow {
            let writer = StreamWriter::new(bytes, &provenance(seed))
                .map_err(|error| Failure::from_error(exit::IO, &error))?;
            Sink::Arrow(Box::new(writer))
        } else {
            Sink::Lines(bytes)
        };
        Ok(Self { name, sink, temporary })
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
                        rows.push(*row);
                    }
                }
                output.write(&rows).map_err(|error| Failure::from_error(exit::IO, &error))
            }
            Sink::Finished => Ok(()),
        }
    }

    /// Completes the output; a file gets its name only now.
    pub fn finish(mut self) -> Result<(), Failure> {
        let mut bytes = match std::mem::replace(&mut self.sink, Sink::Finished) {
            Sink::Lines(output) => output,
            Sink::Arrow(output) => output.finish().map_err(|error| Failure::from_error(exit::IO, &error))?,
            Sink::Finished => return Ok(()),
        };
        bytes.flush().map_err(|error| Failure::io(&self.name, &error))?;
        drop(bytes);
        if let Some((temporary, path)) = self.temporary.take() {
            let synced = File::open(&temporary).and_then(|file| file.sync_all());
            synced.and_then(|()| fs::rename(&temporary, &path)).map_err(|error| {
                // The half-made file is of no use to anyone.
                let _ = fs::remove_file(&temporary);
                Failure::io(&self.name, &error)
            })?;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

fn rewards(sample: &Scored, names: &[String]) -> Value {
    let parts = names.iter().cloned().zip(sample.parts.iter().map(|part| Value::from(part.reward)));
    Value::Object(parts.collect::<Map<_, _>>())
}

/// The line with both keys appended, its other bytes untouched; earlier rewards are replaced.
fn with_rewards(line: &str, sample: &Scored, names: &[String]) -> Result<String, Failure> {
    let reward = Value::from(sample.reward);
    let rewards = rewards(sample, names);
    let has_rewards = line.contains("\"reward\"") || line.contains("\"rewards\"") || line.contains("\\u");
    if has_rewards {
        let mut fields: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| Failure::new(exit::BUG, error))?;
        fields.insert("reward".to_owned(), reward);
        fields.insert("rewards".to_owned(), rewards);
        return Ok(Value::Object(fields).to_string());
    }
    let body = line.trim_end().strip_suffix('}').unwrap_or(line);
    Ok(format!("{body},\"reward\":{reward},\"rewards\":{rewards}}}"))
}
