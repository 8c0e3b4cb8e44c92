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
        "{}: the tokenizer has no chat template\nhint: add chat_template.jinja, or give text and data.apply_chat_template = false",
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
    /// A message with a character that marks the ends of generation blocks.
    #[error("a message holds the character U+{code:X}, which Unicode keeps out of texts\nhint: take it out")]
    Mark {
        /// Its code point.
        code: u32,
    },
    /// `data.loss_mask = "generation"` and a template that marks nothing.
    #[error(
        "the chat template has no {{% generation %}} block, which data.loss_mask = \"generation\" needs\nhint: mark in \
         chat_template.jinja what the assistant says, or data.loss_mask = \"prefix\""
    )]
    NoGenerationBlocks,
    /// Blocks that cannot be told apart by message.
    #[error(
        "expected {expected} turns of the assistant in what the template renders, one for each of its messages, got \
         {got}\nhint: data.loss_mask = \"prefix\" finds them by rendering"
    )]
    Turns {
        /// Messages of the assistant.
        expected: usize,
        /// Turns that were found.
        got: usize,
    },
    /// A template that renders a message otherwise once others follow.
    #[error(
        "message {number} ({role}): expected the conversation to begin with {expected}, got it rendered otherwise (some \
         templates take thinking out of earlier turns)\nhint: mark what the assistant says with {{% generation %}} in \
         chat_template.jinja, or take another data.loss_mask (for Qwen3 \"qwen3\")"
    )]
    NotPrefix {
        /// Which message, from 1.
        number: usize,
        /// Who says it.
        role: String,
        /// What should have been the beginning.
        expected: &'static str,
    },
    /// A conversation that a rule does not take.
    #[error("data.loss_mask = \"{rule}\": expected {expected}, got {got}")]
    Rule {
        /// The rule.
        rule: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it got.
        got: String,
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
