//! What can be wrong with records.

use crate::SampleId;
use std::path::PathBuf;

/// What can be wrong with records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A status word nobody knows.
    #[error("status: expected pending, completed, truncated, aborted or failed, got \"{got}\"")]
    Status {
        /// The word.
        got: String,
    },
    /// A sample whose fields disagree.
    #[error("sample {id}: {field}: expected {expected}, got {got}")]
    Sample {
        /// The sample.
        id: SampleId,
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A prompt that is neither text nor messages.
    #[error("prompt: expected a string or a list of messages with \"role\", got {got}")]
    Prompt {
        /// What it is.
        got: String,
    },
    /// An Arrow file or stream that is broken: cut short, overwritten or not Arrow.
    #[error("broken Arrow data: {reason}")]
    Corrupt {
        /// What was found.
        reason: String,
    },
    /// An Arrow file without a column, or with one of another type.
    #[error("column \"{column}\": expected {expected}, got {got}")]
    Schema {
        /// The column.
        column: String,
        /// The type it should have.
        expected: String,
        /// What is there.
        got: String,
    },
    /// More rows or bytes than the format's 32-bit offsets reach.
    #[error("column \"{column}\": {got} values in one batch, at most {most}")]
    TooLarge {
        /// The column.
        column: &'static str,
        /// How many.
        got: usize,
        /// The limit.
        most: usize,
    },
    /// A line of a JSONL file that is not what it should be.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// A column's row about a sample that is not there, or the other way round.
    #[error("column \"{column}\": {reason}")]
    Join {
        /// The column.
        column: String,
        /// What does not fit.
        reason: String,
    },
    /// Any of the others, in a named file.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// Reading or writing failed.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Arrow refused to write.
    #[error("cannot write Arrow data: {0}")]
    Write(#[source] arrow_schema::ArrowError),
}

impl Error {
    /// The process exit code (sysexits): 65 bad data, 66 no input, 74 I/O.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::File { source, .. } => source.exit_code(),
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 66,
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => 77,
            Self::Io { .. } | Self::Write(_) => 74,
            _ => 65,
        }
    }

    /// The same error, said about a file.
    #[must_use]
    pub fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::File { path: path.into(), source: Box::new(self) }
    }
}

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
