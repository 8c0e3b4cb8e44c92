//! What can go wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A checkpoint that cannot be written, or one that must not be trusted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {call} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        call: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The HDF5 library refused.
    #[error("cannot lay out {}: {message}", .path.display())]
    Hdf5 {
        /// The file.
        path: PathBuf,
        /// The library's words.
        message: String,
    },
    /// A folder without COMPLETE: its writing was cut off or still goes on.
    #[error("checkpoint {} is not complete", .0.display())]
    Incomplete(PathBuf),
    /// A checkpoint of that name is there already.
    #[error("checkpoint {} is complete already", .0.display())]
    Exists(PathBuf),
    /// A file of another size than the index says.
    #[error("{}: expected {expected} bytes, got {got}", .path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// By the index.
        expected: u64,
        /// By the file system.
        got: u64,
    },
    /// Bytes that do not match their checksum.
    #[error("{}: {what}: expected checksum {expected}, got {got}", .path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The tensor and place, or the whole file.
        what: String,
        /// By the index.
        expected: String,
        /// Of the bytes.
        got: String,
    },
    /// An index that does not parse, or says what cannot be.
    #[error("{}: {reason}", .path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Buffers that do not fit their description, or ranks that do not fit each other.
    #[error("tensor {name}: {reason}")]
    Shard {
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor the checkpoint does not have.
    #[error("checkpoint {} has no tensor {name}", .path.display())]
    NoTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// Another rank could not write its part.
    #[error("rank {rank} could not write its part of {}: {message}", .path.display())]
    Peer {
        /// The rank.
        rank: usize,
        /// The checkpoint.
        path: PathBuf,
        /// The rank's words.
        message: String,
    },
    /// Ranks whose part did not appear in time.
    #[error("no part of rank {rank} in {} after {waited_s} s", .path.display())]
    Late {
        /// The first missing rank.
        rank: usize,
        /// The checkpoint.
        path: PathBuf,
        /// How long was waited.
        waited_s: u64,
    },
    /// The writer thread ended by a panic.
    #[error("the checkpoint writer panicked")]
    WriterPanicked,
}

impl Error {
    /// For `map_err` of a call on a path.
    pub(crate) fn io(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { call, path, source }
    }

    /// The exit code of `sysexits.h` for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => 66,
                io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            Self::Incomplete(_) => 66,
            Self::Exists(_) => 73,
            Self::Hdf5 { .. } | Self::Peer { .. } | Self::Late { .. } => 74,
            Self::Size { .. } | Self::Checksum { .. } | Self::Index { .. } | Self::NoTensor { .. } => 65,
            Self::Shard { .. } | Self::WriterPanicked => 70,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Io { source, .. } if is_full(source) => {
                Some("free disk space or raise the quota; the previous checkpoint is whole")
            }
            Self::Size { .. } | Self::Checksum { .. } | Self::Index { .. } | Self::Incomplete(_) => {
                Some("resume from an older checkpoint, or copy this one again")
            }
            _ => None,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
