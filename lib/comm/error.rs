//! What can go wrong between ranks.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed start, or a failed collective. After a failed collective the group is not usable: end the rank.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Buffers and counts of one call do not fit each other.
    #[error("{call}: expected {expected} elements, got {got}")]
    Length {
        /// The collective.
        call: &'static str,
        /// What the counts say.
        expected: usize,
        /// What the buffer holds.
        got: usize,
    },
    /// A message of another size than the buffer it should fill.
    #[error("message from rank {from}: expected {expected} bytes, got {got}")]
    Message {
        /// The sender.
        from: usize,
        /// Bytes of the buffer.
        expected: usize,
        /// Bytes of the message.
        got: usize,
    },
    /// A rank that is not in the group.
    #[error("{call}: rank {rank} is not in a group of {size}")]
    Rank {
        /// The collective.
        call: &'static str,
        /// The rank asked for.
        rank: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// A peer ended while this rank waited for it.
    #[error("rank {rank} ended while rank {waiting} waited for it")]
    PeerGone {
        /// The rank that ended.
        rank: usize,
        /// The rank that waited.
        waiting: usize,
    },
    /// A rank aborted the group with its exit code.
    #[error("rank {rank} aborted with code {code}")]
    Aborted {
        /// The rank that aborted.
        rank: usize,
        /// Its exit code.
        code: u8,
    },
    /// A rank of a thread group panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// The panic's message.
        message: String,
    },
    /// A variable of the launcher that does not parse, or does not fit another one.
    #[error("launcher variable {name}={value}: {reason}")]
    Launcher {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// Launcher and MPI disagree: the ranks were started without a common process manager.
    #[error("the launcher ({launcher}) says rank {rank} of {size}, MPI says rank {mpi_rank} of {mpi_size}")]
    Disagree {
        /// Where rank and size came from.
        launcher: String,
        /// Rank by the launcher.
        rank: usize,
        /// Size by the launcher.
        size: usize,
        /// Rank by MPI.
        mpi_rank: usize,
        /// Size by MPI.
        mpi_size: usize,
    },
    /// No plug-in where it is looked for.
    #[error("no MPI plug-in libslime_mpi.so (looked at {})", list(.tried))]
    NoPlugin {
        /// The places looked at.
        tried: Vec<PathBuf>,
    },
    /// The plug-in or the MPI library behind it cannot be opened.
    #[error("cannot open the MPI plug-in {path}: {reason}")]
    Plugin {
        /// The plug-in.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// MPI returned an error.
    #[error("MPI {call} failed: {message}")]
    Mpi {
        /// The operation.
        call: &'static str,
        /// MPI's words.
        message: String,
    },
    /// NCCL cannot be opened.
    #[error("cannot open {library}: {reason}")]
    NoNccl {
        /// The file that was looked for.
        library: &'static str,
        /// The loader's words.
        reason: String,
    },
    /// NCCL, or the driver below it, returned an error.
    #[error("NCCL: {call} failed: {message}")]
    Nccl {
        /// The operation.
        call: &'static str,
        /// Its words.
        message: String,
    },
    /// Axes that do not multiply up to the world.
    #[error("layout: {reason}")]
    Layout {
        /// What does not fit.
        reason: String,
    },
    /// The operating system gave no thread.
    #[error("cannot start a thread for rank {rank}")]
    Thread {
        /// The rank.
        rank: usize,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The exit code of `sysexits.h` for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Aborted { code, .. } => *code,
            Self::Length { .. } | Self::Rank { .. } | Self::Message { .. } | Self::Panicked { .. } => 70,
            Self::PeerGone { .. }
            | Self::Mpi { .. }
            | Self::Nccl { .. }
            | Self::NoNccl { .. }
            | Self::NoPlugin { .. }
            | Self::Plugin { .. } => 69,
            Self::Launcher { .. } | Self::Disagree { .. } | Self::Layout { .. } => 78,
            Self::Thread { .. } => 71,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoPlugin { .. } => Some(
                "set SLIME_MPI_PLUGIN to libslime_mpi.so, or build with mpicc on PATH (SLIME_MPICC names another)",
            ),
            Self::NoNccl { .. } => Some("put the lib folder of the wheel nvidia-nccl on LD_LIBRARY_PATH"),
            Self::Nccl { .. } => Some("NCCL_DEBUG=INFO makes NCCL say more"),
            Self::Plugin { .. } => Some("load the MPI module that the plug-in was built with"),
            Self::Disagree { .. } => {
                Some("start with `srun --mpi=pmix`, or with the mpirun of the plug-in's MPI")
            }
            Self::Launcher { .. } => Some("start the tool through srun or mpirun, or unset the variable"),
            _ => None,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}
