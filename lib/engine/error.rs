//! What can go wrong while generating, and the exit code each cause maps to.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The causes an engine can fail for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A prompt leaves no room for a single generated token.
    #[error(
        "prompt of request {id} has {prompt_len} tokens, the context holds {context_len} including the response"
    )]
    PromptTooLong {
        /// The caller's name of the request.
        id: u64,
        /// Tokens of the prompt.
        prompt_len: usize,
        /// Tokens the model or the configuration allows.
        context_len: usize,
    },
    /// A prompt without tokens gives the model nothing to continue.
    #[error("prompt of request {id} has no tokens")]
    EmptyPrompt {
        /// The caller's name of the request.
        id: u64,
    },
    /// A token lies outside the vocabulary.
    #[error("request {id}: token {token} at position {position} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The caller's name of the request.
        id: u64,
        /// The offending token.
        token: u32,
        /// Where it stands.
        position: usize,
        /// Size of the model's vocabulary.
        vocab_size: usize,
    },
    /// The KV cache cannot hold even one sequence of this length.
    #[error("request {id} needs {needed} KV blocks, the cache has {num_blocks}")]
    CacheTooSmall {
        /// The caller's name of the request.
        id: u64,
        /// Blocks the longest possible sequence needs.
        needed: usize,
        /// Blocks there are.
        num_blocks: usize,
    },
    /// A sampling parameter is outside its range.
    #[error("{key} = {value} is out of range: expected {expected}")]
    Parameter {
        /// Name of the parameter as in the configuration.
        key: &'static str,
        /// The value given.
        value: String,
        /// The range allowed.
        expected: &'static str,
    },
    /// The model returned NaN or infinity for a row that was to be sampled.
    #[error("logits of request {id}, sample {index} are not finite at position {position}")]
    NonFiniteLogits {
        /// The caller's name of the request.
        id: u64,
        /// Which of the request's samples.
        index: u32,
        /// Position in the sequence.
        position: usize,
    },
    /// The model could not be loaded or run.
    #[error("{}{message}", if message.contains(&*dir.to_string_lossy()) { String::new() } else { format!("{}: ", dir.display()) })]
    Model {
        /// The weight directory.
        dir: PathBuf,
        /// What the model said.
        message: String,
        /// The exit code of the cause.
        exit_code: u8,
    },
    /// New weights broke off half-way: what is loaded is of two versions.
    #[error("{}: {message}; what is loaded is of two versions now", dir.display())]
    Torn {
        /// The weight directory.
        dir: PathBuf,
        /// What the model said.
        message: String,
    },
    /// A rank of the engine is gone, or ranks cannot meet.
    #[error("ranks of the engine: {0}")]
    Ranks(#[from] slime_comm::Error),
    /// Ranks of the engine do not mean the same.
    #[error("ranks of the engine: {what} is not known here")]
    Lost {
        /// What is missing.
        what: &'static str,
    },
}

impl Error {
    /// The sysexits code a tool ends with for this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::PromptTooLong { .. }
            | Self::EmptyPrompt { .. }
            | Self::TokenOutOfRange { .. }
            | Self::NonFiniteLogits { .. } => 65,
            Self::CacheTooSmall { .. } | Self::Parameter { .. } => 78,
            Self::Model { exit_code, .. } => *exit_code,
            Self::Torn { .. } => 74,
            Self::Ranks(error) => error.exit_code(),
            Self::Lost { .. } => 70,
        }
    }
}
