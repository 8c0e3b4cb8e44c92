//! What can go wrong on the way of the weights, and the exit code of each cause.

use std::io;
use std::path::PathBuf;

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a version cannot be published or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The weight directory is not usable.
    #[error(transparent)]
    Weights(#[from] slime_weights::Error),
    /// The bytes of a tensor are not those that were published.
    #[error("{path}: tensor {tensor}: chunk {chunk}: expected checksum {expected:016x}, got {got:016x}", path = path.display())]
    Checksum {
        /// The weight directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Which 16 MiB chunk of it.
        chunk: usize,
        /// The published checksum.
        expected: u64,
        /// The checksum of what was read.
        got: u64,
    },
    /// The directory holds other tensors than the publication names.
    #[error("{path}: tensor {tensor}: expected {expected}, got {got}", path = path.display())]
    Tensors {
        /// The weight directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the publication says.
        expected: String,
        /// What the directory says.
        got: String,
    },
    /// The weights as a whole are not those that were published.
    #[error("{path}: expected the weights {expected:016x}, got {got:016x}", path = path.display())]
    Identity {
        /// The weight directory.
        path: PathBuf,
        /// The published hash.
        expected: u64,
        /// The hash of the directory.
        got: u64,
    },
    /// The layout of ranks is impossible.
    #[error(transparent)]
    Layout(#[from] slime_comm::Error),
    /// An engine's rank would hold a part of a block or group whose elements share a scale.
    #[error(
        "tensor {tensor}: expected boxes of whole blocks of {block}, got {shape:?} from {start:?} on; hint: an engine of fewer tensor-parallel ranks, or another --dtype"
    )]
    CutBlock {
        /// The tensor.
        tensor: String,
        /// Rows and columns of a block.
        block: String,
        /// Where the box begins.
        start: Vec<usize>,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The boxes of the trainer do not make up one of an engine.
    #[error(
        "tensor {tensor}: rank {receiver} of an engine: expected {expected} elements once each, got {got}"
    )]
    NotCovered {
        /// The tensor.
        tensor: String,
        /// The rank within its replica.
        receiver: usize,
        /// Elements of the rank's box.
        expected: usize,
        /// Elements that would come.
        got: usize,
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
}

impl Error {
    /// The sysexits code of this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Weights(source) => source.exit_code(),
            Self::Layout(_) | Self::CutBlock { .. } => 78,
            Self::NotCovered { .. } => 70,
            Self::Checksum { .. } | Self::Tensors { .. } | Self::Identity { .. } => 65,
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => 66,
            Self::Read { .. } => 74,
        }
    }
}
