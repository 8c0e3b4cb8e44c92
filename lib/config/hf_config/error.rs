//! Why a `config.json` is not usable.

use std::path::{Path, PathBuf};

/// Why a `config.json` is not usable.
#[derive(Debug, thiserror::Error)]
pub enum HfConfigError {
    /// The file cannot be read.
    #[error("{path}: cannot read the model configuration: {source}{hint}", path = path.display(), hint = hint(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not JSON, or a key is missing or has the wrong type.
    #[error("{path}: not a model configuration: {source}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause, with line and column or the name of the key.
        #[source]
        source: serde_json::Error,
    },
    /// A key holds a value this implementation does not compute.
    #[error("{path}: key {key}: expected {expected}, got {got}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What would be accepted.
        expected: String,
        /// What stands there.
        got: String,
    },
}

/// What to do about a configuration that is not there.
fn hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => "\nhint: make a weight directory with slime-convert import SRC DST",
        _ => "",
    }
}

impl HfConfigError {
    /// The sysexits code of this cause: 66 when the file is missing, 77 when it may not be read, 74 when reading
    /// failed, else 65.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::NotADirectory
                | std::io::ErrorKind::IsADirectory => 66,
                std::io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            Self::Parse { .. } | Self::Value { .. } => 65,
        }
    }
}

/// A key whose value is not computed, before the file it stands in is named.
#[derive(Debug)]
pub(super) struct Refused {
    key: &'static str,
    expected: String,
    got: String,
}

impl Refused {
    pub fn new(key: &'static str, expected: impl Into<String>, got: impl std::fmt::Display) -> Self {
        Self { key, expected: expected.into(), got: got.to_string() }
    }

    pub fn in_file(self, path: &Path) -> HfConfigError {
        let Self { key, expected, got } = self;
        HfConfigError::Value { path: path.to_owned(), key, expected, got }
    }
}
