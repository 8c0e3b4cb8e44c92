//! Why rewards cannot be computed.

/// The causes; `row` counts from 0 within the rows given, callers add where those began.
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
        /// The row.
        row: usize,
        /// The reward type.
        name: &'static str,
    },
    /// A label in which the number reward finds no number.
    #[error("the number reward finds no number in the label {label:?}")]
    LabelWithoutNumber {
        /// The row.
        row: usize,
        /// The label.
        label: String,
    },
    /// A `command:` specification without a program.
    #[error("reward type {spec}: {problem}")]
    CommandLine {
        /// The type as written.
        spec: String,
        /// What is wrong.
        problem: &'static str,
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
        /// The row it was asked about.
        row: usize,
        /// The program.
        program: String,
        /// What happened.
        problem: String,
    },
    /// A segment that cannot be read.
    #[error(transparent)]
    Record(#[from] slime_record::Error),
    /// A segment whose samples cannot be scored.
    #[error("{path}{}: {source}", .source.row().map(|row| format!(" row {}", row + 1)).unwrap_or_default())]
    Segment {
        /// The segment.
        path: String,
        /// The cause, about a row of it.
        #[source]
        source: Box<Error>,
    },
}

impl Error {
    /// The sysexits code: 64 for a wrong type, 69 for a program that cannot be started or fails, else 65.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownType { .. } | Self::Weight { .. } | Self::Regex(_) | Self::CommandLine { .. } => 64,
            Self::Start { .. } | Self::Program { .. } => 69,
            Self::MissingLabel { .. } | Self::LabelWithoutNumber { .. } => 65,
            Self::Record(source) => source.exit_code(),
            Self::Segment { source, .. } => source.exit_code(),
        }
    }

    /// The row this error is about, counted from 0.
    pub fn row(&self) -> Option<usize> {
        match self {
            Self::MissingLabel { row, .. }
            | Self::LabelWithoutNumber { row, .. }
            | Self::Program { row, .. } => Some(*row),
            Self::Segment { source, .. } => source.row(),
            _ => None,
        }
    }
}

/// The result of scoring.
pub type Result<T> = std::result::Result<T, Error>;
