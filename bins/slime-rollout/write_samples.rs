//! Samples out, group by group, as JSON lines or Arrow.

use std::io::Write;

use slime_cli::Failure;
use slime_config::RunConfig;
use slime_record::{JsonlWriter, LogProbSpace, Provenance, Row, Sample, StreamWriter, encode_segment};

use crate::args::OutputFormat;
use crate::failure;
use crate::write_rows::Output;

/// Writes groups of samples; nothing of a file has its name before `finish`.
pub enum SampleWriter {
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
    pub fn create(output: &str, format: OutputFormat, config: &RunConfig) -> Result<Self, Failure> {
        let provenance = provenance(config);
        let file = Output::create(output)?;
        match (format, output) {
            (OutputFormat::Jsonl, _) => Ok(Self::Jsonl(JsonlWriter::new(file))),
            (OutputFormat::Arrow, "-") => {
                StreamWriter::new(file, &provenance).map(Self::Stream).map_err(failure!())
            }
            (OutputFormat::Arrow, _) => Ok(Self::File { output: file, samples: Vec::new(), provenance }),
        }
    }

    /// One group.
    pub fn write(&mut self, group: Vec<Sample>) -> Result<(), Failure> {
        match self {
            Self::Jsonl(writer) => {
                group.into_iter().try_for_each(|sample| writer.write(&Row::from(sample))).map_err(failure!())
            }
            Self::Stream(writer) => {
                let rows: Vec<Row> = group.into_iter().map(Row::from).collect();
                writer.write(&rows).map_err(failure!())
            }
            Self::File { samples, .. } => {
                samples.extend(group);
                Ok(())
            }
        }
    }

    /// Completes the output.
    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Jsonl(writer) => writer.finish().map_err(failure!())?.finish(),
            Self::Stream(writer) => writer.finish().map_err(failure!())?.finish(),
            Self::File { mut output, samples, provenance } => {
                let bytes = encode_segment(&samples, &provenance).map_err(failure!())?;
                output.write_all(&bytes).map_err(|error| Failure::io(output.name(), &error))?;
                output.finish()
            }
        }
    }
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
