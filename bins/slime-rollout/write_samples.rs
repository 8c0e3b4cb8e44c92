//! Samples out, group by group, as JSON lines or Arrow.

use std::io::Write;

use slime_cli::{Failure, Output};
use slime_config::RunConfig;
use slime_record::{JsonlWriter, LogProbSpace, Provenance, Row, Sample, StreamWriter, encode_segment};

use crate::args::OutputFormat;
use crate::failure;

/// Writes groups of samples; nothing of a file has its name before `finish`.
pub struct SampleWriter {
    name: String,
    sink: Sink,
}

enum Sink {
    Jsonl(JsonlWriter<Output>),
    Stream(StreamWriter<Output>),
    /// An Arrow file has its index at the end.
    File {
        output: Output,
        samples: Vec<Sample>,
        provenance: Provenance,
    },
}

impl SampleWriter {
    /// `-` is stdout.
    pub fn create(
        output: &str,
        format: OutputFormat,
        config: &RunConfig,
        log_probs: LogProbSpace,
    ) -> Result<Self, Failure> {
        let provenance = Provenance { log_probs, ..provenance(config) };
        let file = Output::create(output)?;
        let name = file.name().to_owned();
        let sink = match (format, output) {
            (OutputFormat::Jsonl, _) => Sink::Jsonl(JsonlWriter::new(file)),
            (OutputFormat::Arrow, "-") => {
                Sink::Stream(StreamWriter::new(file, &provenance).map_err(|error| failed(&name, &error))?)
            }
            (OutputFormat::Arrow, _) => Sink::File { output: file, samples: Vec::new(), provenance },
        };
        Ok(Self { name, sink })
    }

    /// One group.
    pub fn write(&mut self, group: Vec<Sample>) -> Result<(), Failure> {
        let written = match &mut self.sink {
            Sink::Jsonl(writer) => group.into_iter().try_for_each(|sample| writer.write(&Row::from(sample))),
            Sink::Stream(writer) => {
                let rows: Vec<Row> = group.into_iter().map(Row::from).collect();
                writer.write(&rows)
            }
            Sink::File { samples, .. } => {
                samples.extend(group);
                Ok(())
            }
        };
        written.map_err(|error| failed(&self.name, &error))
    }

    /// Completes the output.
    pub fn finish(self) -> Result<(), Failure> {
        let complete = match self.sink {
            Sink::Jsonl(writer) => writer.finish(),
            Sink::Stream(writer) => writer.finish(),
            Sink::File { mut output, samples, provenance } => {
                let bytes = encode_segment(&samples, &provenance).map_err(failure!())?;
                output.write_all(&bytes).map_err(|error| Failure::io(&self.name, &error))?;
                Ok(output)
            }
        };
        complete.map_err(|error| failed(&self.name, &error))?.finish()
    }
}

fn failed(name: &str, error: &slime_record::Error) -> Failure {
    Failure::write(name, error.exit_code(), error)
}

/// What stands in the metadata of every file of samples.
pub fn provenance(config: &RunConfig) -> Provenance {
    Provenance {
        tool: "slime-rollout".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: config.run.seed,
        log_probs: LogProbSpace::AfterTruncation,
        ..Provenance::default()
    }
}
