//! What can be wrong with an archive.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why files cannot be packed, read or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {call} {}: {source}", path.display())]
    Io {
        /// What was tried.
        call: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// An archive or its manifest that contradicts itself.
    #[error("{}: corrupt: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the member where there is one.
        reason: String,
    },
    /// A file that is neither in its place nor packed.
    #[error("{}: {name} is not there, and no archive has it", run.display())]
    NoMember {
        /// The run directory.
        run: PathBuf,
        /// The file's name in the run.
        name: String,
    },
    /// A file that is there and packed, with other bytes.
    #[error("{}: differs from its copy in {archive}\nhint: move one of the two away", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// The archive.
        archive: String,
    },
}

impl Error {
    /// The exit code (sysexits): 65 corrupt, 66 no input, 74 I/O, 77 permission.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => 66,
                io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            Self::NoMember { .. } => 66,
            Self::Corrupt { .. } | Self::Differs { .. } => 65,
        }
    }

    pub(crate) fn io(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { call, path, source }
    }

    pub(crate) fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), reason: reason.into() }
    }
}
