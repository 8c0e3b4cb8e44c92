//! What can go wrong in training.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No samples, so no loss.
    #[error("no samples to train on")]
    NoSamples,
    /// A sample that does not fit its own description or the model.
    #[error("sample {id}: {field}: expected {expected}, got {got}")]
    Sample {
        /// The sample.
        id: slime_record::SampleId,
        /// The field.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// No sample of an optimizer step has a trained token.
    #[error("optimizer step {step}: no token is trained: every loss_mask is zero")]
    NothingTrained {
        /// Which optimizer step of the rollout.
        step: usize,
    },
    /// A loss or a gradient that is not a number.
    #[error("{0}\nhint: checks.on_not_finite = \"skip\" leaves such optimizer steps out")]
    NotFinite(NotFinite),
    /// There is no room for a tensor.
    #[error("{phase}: {found}\nhint: {hint}")]
    OutOfMemory {
        /// What was being done.
        phase: &'static str,
        /// What was asked for.
        found: slime_torch::OutOfMemory,
        /// The cheapest setting that helps.
        hint: String,
    },
    /// Something of `[checks]` does not hold.
    #[error("{problem}\nhint: checks.on_failure = \"warn\" goes on all the same")]
    Check {
        /// What.
        problem: String,
    },
    /// The configured formulas need a model that the trainer was not given.
    #[error("the configured loss needs {role}")]
    Role {
        /// What is missing.
        role: &'static str,
    },
    /// An optimizer step that would part a pair.
    #[error("{samples} samples of an optimizer step are no whole number of pairs")]
    Pairs {
        /// Samples of the step.
        samples: usize,
    },
    /// Samples that do not divide into the configured optimizer steps.
    #[error("{samples} samples do not divide into {steps} optimizer steps")]
    Batch {
        /// Samples of the rollout.
        samples: usize,
        /// Optimizer steps of the rollout.
        steps: usize,
    },
    /// A state buffer with an unknown name or a wrong size.
    #[error("optimizer state {name}: expected {expected}, got {got}")]
    State {
        /// The buffer.
        name: String,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// From the model.
    #[error(transparent)]
    Model(#[from] slime_model::Error),
    /// From libtorch through tch.
    #[error("libtorch: {0}")]
    Tch(#[from] tch::TchError),
    /// From libtorch through our shim.
    #[error(transparent)]
    Torch(#[from] slime_torch::Error),
    /// From a weight directory.
    #[error(transparent)]
    Weights(#[from] slime_weights::Error),
    /// From a collective.
    #[error(transparent)]
    Comm(#[from] slime_comm::Error),
}

impl Error {
    /// The sysexits code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoSamples
            | Self::Sample { .. }
            | Self::NothingTrained { .. }
            | Self::NotFinite(_)
            | Self::Check { .. }
            | Self::State { .. } => 65,
            Self::Batch { .. } | Self::Role { .. } | Self::Pairs { .. } => 78,
            Self::Model(error) => error.exit_code(),
            Self::OutOfMemory { .. } => 71,
            Self::Tch(_) => 70,
            Self::Torch(error) => error.exit_code(),
            Self::Weights(error) => error.exit_code(),
            Self::Comm(error) => error.exit_code(),
        }
    }
}

/// A loss or a gradient that is not a finite number.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "optimizer step {step}: {what} is {value}, not a finite number; the weights are unchanged by this step{}",
    named(samples)
)]
pub struct NotFinite {
    /// Which optimizer step since the start.
    pub step: u64,
    /// Loss or gradient norm.
    pub what: &'static str,
    /// Its value.
    pub value: f64,
    /// The samples whose part of a loss is not finite; of a gradient, those of the step.
    pub samples: Vec<slime_record::SampleId>,
}

/// How many samples a message names.
const NUM_NAMED: usize = 8;

/// The offending samples as the end of a sentence.
fn named(samples: &[slime_record::SampleId]) -> String {
    if samples.is_empty() {
        return String::new();
    }
    let names: Vec<String> = samples.iter().take(NUM_NAMED).map(ToString::to_string).collect();
    let more = samples.len().saturating_sub(NUM_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("\nsamples: {}{more}", names.join(", "))
}
