//! What can be wrong with a tokenizer.

use std::path::PathBuf;

/// What can be wrong with a tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("{}: {source}{}", path.display(), hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A directory without a chat template, asked to apply one.
    #[error(
        "{}: the tokenizer has no chat template\nhint: give prompts as text, or add chat_template.jinja",
        path.display()
    )]
    NoChatTemplate {
        /// The directory.
        path: PathBuf,
    },
    /// A chat template that does not parse or refuses the messages.
    #[error("chat template: {reason}")]
    ChatTemplate {
        /// What it said.
        reason: String,
    },
    /// Text or ids the tokenizer refuses.
    #[error("cannot {action}: {reason}")]
    Codec {
        /// `encode` or `decode`.
        action: &'static str,
        /// What the library said.
        reason: String,
    },
}

/// What to do about a tokenizer that is not there.
fn hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => {
            "\nhint: make a weight directory with slime-convert import SRC DST; it brings the tokenizer along"
        }
        _ => "",
    }
}

impl Error {
    /// The process exit code (sysexits): 65 bad data, 66 no input, 74 I/O, 77 permission.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::NotADirectory
                | std::io::ErrorKind::IsADirectory => 66,
                std::io::ErrorKind::PermissionDenied => 77,
                _ => 74,
            },
            _ => 65,
        }
    }
}

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
