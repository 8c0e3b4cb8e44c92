//! What can go wrong between the tools, and which exit code it means.

use std::io;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong in the exchange.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the file system failed.
    #[error("{op} {path}: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file or folder.
        path: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The disk or the quota is full; a clean drain follows.
    #[error(
        "{path}: the disk or the quota is full\nhint: free space, then start again; nothing sealed is lost"
    )]
    Full {
        /// The file that could not be written.
        path: String,
    },
    /// A file cannot be read yet or any more (stale handle); worth another try.
    #[error("{path}: stale file handle")]
    Stale {
        /// The file.
        path: String,
    },
    /// A sealed file does not hold what it should.
    #[error("{path}: {problem}")]
    Broken {
        /// The file.
        path: String,
        /// What is wrong with it: expected and got.
        problem: String,
    },
    /// A newer incarnation of the same owner lives; this one must end.
    #[error("{owner}: incarnation {mine} was replaced by {newer}")]
    Fenced {
        /// The owner.
        owner: String,
        /// This incarnation.
        mine: u64,
        /// The newer one.
        newer: u64,
    },
    /// The same owner lives in another process.
    #[error("{owner} of this run is alive: {holder}\nhint: wait for its end, or --takeover")]
    Alive {
        /// The owner.
        owner: String,
        /// What is known of the process.
        holder: String,
    },
    /// Filters refused so many groups that the step cannot be built.
    #[error(
        "step {step}: {refused} groups refused ({histogram}), max_groups {max_groups}\nhint: make the prompts easier or harder, or raise max_groups"
    )]
    TooManyRefused {
        /// The step.
        step: u64,
        /// Groups that were refused.
        refused: usize,
        /// Reason and count of each kind.
        histogram: String,
        /// The limit.
        max_groups: u32,
    },
    /// The data stream ended before the run did.
    #[error("the prompts ended at position {cursor}\nhint: raise num_epoch or lower num_steps")]
    PromptsEnded {
        /// First position without a prompt.
        cursor: u64,
    },
    /// A policy of the step builder, or a format, failed.
    #[error("{0}")]
    Outside(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A checkpoint to start from that the run's line does not have.
    #[error(
        "no complete checkpoint of version {version} on this run's line\nhint: {}",
        if there.is_empty() { "there is none at all: start without --resume".to_owned() } else { format!("--resume may be one of {there:?}") }
    )]
    NoCheckpoint {
        /// The version asked for.
        version: u64,
        /// Versions with a checkpoint.
        there: Vec<u64>,
    },
    /// The settings contradict each other.
    #[error("{0}")]
    Setting(String),
}

impl Error {
    /// Whether the same poll may succeed a little later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }

    /// The sysexits code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => 73,
            Self::Io { .. } | Self::Full { .. } | Self::Stale { .. } => 74,
            Self::Broken { .. } | Self::TooManyRefused { .. } | Self::Outside(_) => 65,
            Self::PromptsEnded { .. } | Self::NoCheckpoint { .. } => 66,
            Self::Fenced { .. } => 75,
            Self::Alive { .. } => 73,
            Self::Setting(_) => 78,
        }
    }

    /// Wraps an I/O error; a full disk and a stale handle become causes of their own.
    pub fn io(op: &'static str, path: &str, source: io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&source.kind());
        match source.kind() {
            _ if full => Self::Full { path: path.to_owned() },
            io::ErrorKind::StaleNetworkFileHandle => Self::Stale { path: path.to_owned() },
            _ => Self::Io { op, path: path.to_owned(), source },
        }
    }

    /// Wraps the error of a format or a policy.
    pub fn outside(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Outside(source.into())
    }
}
