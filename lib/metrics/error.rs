//! What can go wrong when numbers are written.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of numbers cannot be written.
    #[error("{path}: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The sysexits code: 77 when the file may not be written, 73 when its folder is missing, else 74.
    pub fn exit_code(&self) -> u8 {
        let Self::Write { source, .. } = self;
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => 77,
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => 73,
            _ => 74,
        }
    }
}
