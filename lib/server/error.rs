//! Why a server does not start or has to end.

use std::path::PathBuf;

/// The causes a server can fail for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address or the socket cannot be listened on.
    #[error("cannot listen on {place}: {source}")]
    Listen {
        /// Where.
        place: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Somebody answers on the socket.
    #[error("cannot listen on {}: another process does\nhint: take another path, or end that process", path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The token file cannot be read or made.
    #[error("token file {}: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Others may read the token.
    #[error("token file {}: expected mode 0600 and this user as owner, got mode {mode:04o} and user {owner}\nhint: chmod 600 {}", path.display(), path.display())]
    TokenMode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        owner: u32,
    },
    /// The token is no token.
    #[error("token file {}: expected one line of at least {least} letters, digits and signs, got {got}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Fewest characters.
        least: usize,
        /// What it holds.
        got: String,
    },
    /// A folder below which weights may lie is not there.
    #[error("--weight-root {}: {source}", path.display())]
    WeightRoot {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system refuses threads or sockets.
    #[error("cannot start the server: {0}")]
    Start(#[source] std::io::Error),
    /// The engine failed; all requests were told.
    #[error(transparent)]
    Engine(#[from] slime_engine::Error),
    /// The engine's thread died of a defect.
    #[error("the engine ended by a panic; what it was is above")]
    Panicked,
}

impl Error {
    /// The process exit code (sysexits).
    pub fn exit_code(&self) -> u8 {
        let of_io = |source: &std::io::Error, other| match source.kind() {
            std::io::ErrorKind::PermissionDenied => 77,
            std::io::ErrorKind::NotFound => 66,
            _ => other,
        };
        match self {
            Self::Listen { source, .. } => of_io(source, 73),
            Self::SocketInUse { .. } => 73,
            Self::TokenFile { source, .. } | Self::WeightRoot { source, .. } => of_io(source, 74),
            Self::TokenMode { .. } => 77,
            Self::Token { .. } => 78,
            Self::Start(_) => 71,
            Self::Engine(error) => error.exit_code(),
            Self::Panicked => 70,
        }
    }
}

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
