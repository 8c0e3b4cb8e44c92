//! Why rewards cannot be computed.

/// The causes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A reward type that does not exist.
    #[error("unknown reward type {name}{hint}")]
    UnknownType {
        /// The name as written.
        name: String,
        /// Empty, or a `hint:` line.
        hint: String,
    },
    /// A weight that is not a finite number.
    #[error("reward type {spec}: weight: expected a finite number, got {weight}")]
    Weight {
        /// The type as written.
        spec: String,
        /// The weight as written.
        weight: String,
    },
    /// A pattern that is not a regular expression.
    #[error("reward type format:regex: {0}")]
    Regex(#[from] regex::Error),
    /// A reward type that needs a label met a row without one.
    #[error("the {name} reward needs a label, and the row has none")]
    MissingLabel {
        /// The reward type.
        name: &'static str,
    },
    /// A reward type that needs a key of the metadata met a row without it.
    #[error("the {name} reward needs metadata.{key}, and the row has none")]
    MissingMetadata {
        /// The reward type.
        name: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A reward type that compares the samples of a group met a row of no group.
    #[error("the {name} reward compares a group, and the row has no `group`")]
    MissingGroup {
        /// The reward type.
        name: &'static str,
    },
    /// A label or metadata from which a reward type cannot tell what is right.
    #[error("the {name} reward: {problem}")]
    BadRow {
        /// The reward type.
        name: &'static str,
        /// What is wrong: where, expected, got.
        problem: String,
    },
    /// A reward that is infinite or no number.
    #[error("the {name} reward: expected a finite number, got {reward}")]
    NotFinite {
        /// The reward type.
        name: String,
        /// The reward.
        reward: f64,
    },
    /// A reward type gave fewer verdicts than it was given rows.
    #[error("the {name} reward gave no verdict")]
    Lost {
        /// The reward type.
        name: String,
    },
    /// A label in which a reward that needs one finds no number.
    #[error("the {name} reward finds no number in the label {label:?}")]
    LabelWithoutNumber {
        /// The reward type.
        name: &'static str,
        /// The label.
        label: String,
    },
    /// An argument of a reward type that is not of its form.
    #[error("reward type {spec}: {problem}")]
    Argument {
        /// The type as written.
        spec: String,
        /// What is wrong: key, expected, got.
        problem: String,
    },
    /// The program cannot be started.
    #[error("cannot start the reward program {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The program ended, was silent for too long or wrote something that is no reward.
    #[error("reward program {program}: {problem}")]
    Program {
        /// The program.
        program: String,
        /// What happened.
        problem: String,
    },
    /// A server cannot be reached, fails or answers something that is no reward.
    #[error("reward server {url}: {problem}")]
    Server {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The tokenizer that tells the tokens of spans cannot be read.
    #[error("reward.spans: {0}")]
    Tokenizer(#[from] slime_tokenizer::Error),
    /// `reward.spans` without a model.
    #[error(
        "reward.spans = true: expected model.path, whose tokenizer tells the tokens of spans; it is not set"
    )]
    NoTokenizer,
    /// The sandbox, or a compiler or interpreter that code needs.
    #[error(transparent)]
    Sandbox(#[from] slime_sandbox::Error),
    /// A segment that cannot be read.
    #[error(transparent)]
    Record(#[from] slime_record::Error),
    /// A row that cannot be scored.
    #[error("row {}: {source}", .row + 1)]
    Row {
        /// The row, counted from 0 within the rows given.
        row: usize,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
    /// A segment whose samples cannot be scored.
    #[error("{path}: {source}")]
    Segment {
        /// The segment.
        path: String,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
}

impl Error {
    /// The sysexits code: 64 for a wrong type, 69 for a program or server that cannot be reached or fails, 70 for a
    /// verdict that is missing, else 65.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownType { .. } | Self::Weight { .. } | Self::Regex(_) | Self::Argument { .. } => 64,
            Self::Start { .. } | Self::Program { .. } | Self::Server { .. } | Self::NotFinite { .. } => 69,
            Self::Lost { .. } => 70,
            Self::MissingLabel { .. }
            | Self::MissingMetadata { .. }
            | Self::MissingGroup { .. }
            | Self::BadRow { .. }
            | Self::LabelWithoutNumber { .. } => 65,
            Self::NoTokenizer => 78,
            Self::Tokenizer(source) => source.exit_code(),
            Self::Sandbox(source) => source.exit_code(),
            Self::Record(source) => source.exit_code(),
            Self::Row { source, .. } | Self::Segment { source, .. } => source.exit_code(),
        }
    }
}

/// The result of scoring.
pub type Result<T> = std::result::Result<T, Error>;
