//! Why a configuration is refused.

use std::path::PathBuf;

/// The causes; every message names the file and line, the `--set` argument, or the key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The text is not TOML, or a value has the wrong type.
    #[error("{place}: {message}")]
    Syntax {
        /// File and line, or the `--set` argument.
        place: String,
        /// What the parser expected and got.
        message: String,
    },
    /// A key or section that does not exist.
    #[error("{place}: unknown key {key}{hint}")]
    UnknownKey {
        /// File and line, or the `--set` argument.
        place: String,
        /// The key as written.
        key: String,
        /// Empty, or a `hint:` line with what was probably meant.
        hint: String,
    },
    /// A `--set` argument that is not `section.key=value`.
    #[error("--set {argument}: expected section.key=value")]
    SetArgument {
        /// The argument.
        argument: String,
    },
    /// A value outside what the key accepts.
    #[error("{key}: expected {expected}, got {got}")]
    Value {
        /// The key with its section.
        key: String,
        /// What would be accepted.
        expected: String,
        /// What stands there.
        got: String,
    },
    /// Values that are right by themselves and contradict each other.
    #[error("{0}")]
    Conflict(String),
}

impl Error {
    /// The sysexits code: 66 when there is no such file, 77 when it may not be read, 74 when reading failed, else 78.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::NotADirectory
                | std::io::ErrorKind::IsADirectory => 66,
                std::io::ErrorKind::InvalidData => 78,
                std::io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            _ => 78,
        }
    }

    pub(crate) fn value(key: &str, expected: &str, got: impl std::fmt::Display) -> Self {
        Self::Value { key: key.to_owned(), expected: expected.to_owned(), got: got.to_string() }
    }
}

/// The result of reading a configuration.
pub type Result<T> = std::result::Result<T, Error>;
