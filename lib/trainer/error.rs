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
    #[error(
        "optimizer step {step}: {what} is {value}, not a finite number; the weights are unchanged by this step"
    )]
    NotFinite {
        /// Which optimizer step since the start.
        step: u64,
        /// Loss or gradient norm.
        what: &'static str,
        /// Its value.
        value: f64,
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
            | Self::NotFinite { .. }
            | Self::State { .. } => 65,
            Self::Batch { .. } => 78,
            Self::Model(error) => error.exit_code(),
            Self::Tch(_) => 70,
            Self::Torch(error) => error.exit_code(),
            Self::Comm(error) => error.exit_code(),
        }
    }
}
