//! What can go wrong on the way of the weights, and the exit code of each cause.

use std::io;
use std::path::PathBuf;

use slime_exchange::Physical;

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
    /// The store of the run directory refuses.
    #[error(transparent)]
    Store(#[from] slime_exchange::Error),
    /// A publication does not say what its transport needs.
    #[error("{publication}: {problem}")]
    Publication {
        /// The publication, below the run directory.
        publication: String,
        /// What is wrong with it: expected and got.
        problem: String,
    },
    /// A publication names a transport that is none of those known here.
    #[error("{publication}: transport: expected disk, delta or shm, got {got}")]
    UnknownTransport {
        /// The publication, below the run directory.
        publication: String,
        /// What it names.
        got: String,
    },
    /// A version is told in changes of one that is not published.
    #[error("version {version}: expected the published version {base}, whose changes lead to it, found none")]
    Gap {
        /// The version.
        version: Physical,
        /// What is missing.
        base: Physical,
    },
    /// The published version under a base's name is another one.
    #[error(
        "{publication}: expected the weights {expected:016x}, which later versions change, got {got:016x}"
    )]
    Base {
        /// The publication of the base, below the run directory.
        publication: String,
        /// The hash that later versions name.
        expected: u64,
        /// The hash that was published.
        got: u64,
    },
    /// The changes of a tensor are broken.
    #[error("{path}: tensor {tensor}: {reason}", path = path.display())]
    Changes {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with them.
        reason: String,
    },
    /// Weights lie in the memory of another node, and not on disk.
    #[error(
        "version {version}: expected to run on {expected}, in whose memory it lies, got {got}\nhint: sync.transport = \"disk\" or \"delta\" where engines run on other nodes than the trainer"
    )]
    OtherNode {
        /// The version.
        version: Physical,
        /// The node whose memory it is.
        expected: String,
        /// This node.
        got: String,
    },
    /// The folder for weights in memory is none.
    #[error(
        "sync.memory_dir {path}: expected a tmpfs, got a file system of type {got:#x}\nhint: /dev/shm is one",
        path = path.display()
    )]
    NotMemory {
        /// The folder.
        path: PathBuf,
        /// What `statfs` says of it.
        got: i64,
    },
    /// There is no room for a version.
    #[error(
        "{path}: expected room for {expected} bytes, got {got}\nhint: free some, or sync.transport = \"disk\"",
        path = path.display()
    )]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// What it takes.
        expected: u64,
        /// What there is.
        got: u64,
    },
    /// Writing failed.
    #[error("{path}: cannot write: {source}", path = path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
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
            Self::Store(source) => source.exit_code(),
            Self::Layout(_) | Self::CutBlock { .. } | Self::NotMemory { .. } => 78,
            Self::NotCovered { .. } => 70,
            Self::Checksum { .. }
            | Self::Tensors { .. }
            | Self::Identity { .. }
            | Self::Publication { .. }
            | Self::UnknownTransport { .. }
            | Self::Gap { .. }
            | Self::Base { .. }
            | Self::Changes { .. } => 65,
            Self::OtherNode { .. } => 69,
            Self::Write { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => 66,
            Self::NoRoom { .. } | Self::Write { .. } | Self::Read { .. } => 74,
        }
    }
}
