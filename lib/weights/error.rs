//! What can be wrong with weight files, and the exit code of each cause.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory holds no weights.
    #[error("{path}: expected {expected}, found none\nhint: {hint}", path = path.display())]
    NoWeights {
        /// The directory.
        path: PathBuf,
        /// The files that were looked for.
        expected: &'static str,
        /// What the user can do.
        hint: &'static str,
    },
    /// Reading failed.
    #[error("{path}: cannot read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Writing failed.
    #[error("{path}: cannot write: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The target of a write is already there.
    #[error("{path}: exists already and is not an empty directory\nhint: choose another name or remove it first", path = path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// The file ends early.
    #[error("{path}: truncated: expected {expected} bytes ({what}), got {got}", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What needs the bytes.
        what: String,
        /// Bytes the file would need.
        expected: u64,
        /// Bytes the file has.
        got: u64,
    },
    /// The file contradicts its format.
    #[error("{path}: corrupt: {reason}", path = path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the tensor or key where there is one.
        reason: String,
    },
    /// A tensor is not there.
    #[error("{path}: tensor {tensor} is missing", path = path.display())]
    NoTensor {
        /// The directory or file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{path}: tensor {tensor}: expected shape {expected:?}, got {got:?}", path = path.display())]
    Shape {
        /// The directory or file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape of the configuration.
        expected: Vec<usize>,
        /// The shape of the file.
        got: Vec<usize>,
    },
    /// A tensor has an element type that does not fit the purpose.
    #[error("tensor {tensor}: expected {expected}, got {got}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// What would do.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A tensor holds NaN or an infinity.
    #[error("{path}: tensor {tensor}: element {index} is not a finite number", path = path.display())]
    NotFinite {
        /// The directory or file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Flat index of the first such element.
        index: usize,
    },
    /// The file asks for something this implementation does not know.
    #[error("{path}: unsupported {what}\nhint: {hint}", path = path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The thing, by name.
        what: String,
        /// What is supported.
        hint: String,
    },
    /// The model configuration is not usable.
    #[error(transparent)]
    Config(#[from] slime_config::HfConfigError),
}

impl Error {
    /// The sysexits code of this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoWeights { .. } => 66,
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => 66,
                io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            Self::Write { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => 77,
                io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::ReadOnlyFilesystem => 73,
                _ => 74,
            },
            Self::Exists { .. } => 73,
            Self::Config(source) => source.exit_code(),
            _ => 65,
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), reason: reason.into() }
    }
}
