//! What can be wrong with prompts.

use std::path::{Path, PathBuf};

/// What can be wrong with prompts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file that is not of the format it seems to have.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A row that is not what it should be.
    #[error("{}: {unit} {row}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// What `row` counts: lines of a text, rows of a table.
        unit: &'static str,
        /// Which one, from 1.
        row: u64,
        /// What is wrong.
        reason: String,
    },
    /// A key that a row does not have.
    #[error("{}: {unit} {row}: no key \"{key}\" ({option})\nhint: the row has the keys {}", path.display(), keys.join(", "))]
    Key {
        /// The file.
        path: PathBuf,
        /// What `row` counts: lines of a text, rows of a table.
        unit: &'static str,
        /// Which one, from 1.
        row: u64,
        /// The key.
        key: String,
        /// The option that names it.
        option: &'static str,
        /// The keys that exist.
        keys: Vec<String>,
    },
    /// A file, slice or split without a single prompt.
    #[error("{name}: no prompts: {reason}")]
    Empty {
        /// The source.
        name: String,
        /// Why.
        reason: String,
    },
    /// A slice that is none.
    #[error("{spec}: expected a slice such as @[0:1000], @[100:] or @[:-10]")]
    Slice {
        /// What was given.
        spec: String,
    },
    /// A configuration without prompts.
    #[error("data.prompts is missing\nhint: set data.prompts, [[data.source]] or data.environment")]
    NoSource,
    /// A configuration that does not say how long the run is, or contradicts itself.
    #[error(transparent)]
    Config(#[from] slime_config::Error),
    /// An environment nobody knows.
    #[error("environment \"{name}\" is not known\nhint: known environments: {known}")]
    Environment {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

impl Error {
    /// For `map_err` of a call on a file.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// The process exit code (sysexits): 65 bad data, 66 no input, 74 I/O, 77 permission, 78 config.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::NotADirectory
                | std::io::ErrorKind::IsADirectory => 66,
                std::io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            Self::Slice { .. } | Self::Environment { .. } | Self::NoSource => 78,
            Self::Config(error) => error.exit_code(),
            Self::File { .. } | Self::Row { .. } | Self::Key { .. } | Self::Empty { .. } => 65,
        }
    }
}

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
