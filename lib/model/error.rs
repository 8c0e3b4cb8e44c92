//! What can go wrong while a model is loaded or run.

use std::path::PathBuf;

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model configuration is unusable.
    #[error(transparent)]
    Config(#[from] slime_config::HfConfigError),
    /// A setting does not fit the model.
    #[error(transparent)]
    Setting(#[from] slime_config::Error),
    /// The weights are unusable.
    #[error(transparent)]
    Weights(#[from] slime_weights::Error),
    /// An operation of libtorch failed.
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
    /// An operation of our own failed.
    #[error(transparent)]
    Operation(#[from] slime_torch::Error),
    /// A kernel of our own failed.
    #[error(transparent)]
    Kernel(#[from] slime_kernel::Error),
    /// The driver of a GPU refused.
    #[error(transparent)]
    Cuda(#[from] slime_cuda::Error),
    /// Parameters of this element type cannot be held.
    #[error("dtype of parameters: expected float, bfloat16, half or double, got {0:?}")]
    Dtype(tch::Kind),
    /// A storage the composition needs is not in the store.
    #[error("storage {name}: not part of the parameters of this model")]
    MissingStorage {
        /// The name of the storage.
        name: String,
    },
    /// Two weight directories differ in the shape of a tensor.
    #[error("{path}: tensor {tensor}: expected shape {expected:?}, got {got:?}", path = path.display())]
    Shape {
        /// The weight directory, or the name of the receiving buffer.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape of the model.
        expected: Vec<i64>,
        /// The shape offered.
        got: Vec<i64>,
    },
    /// What an operation was given does not fit.
    #[error("{what}: expected {expected}, got {got}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// Ranks could not meet.
    #[error(transparent)]
    Comm(#[from] slime_comm::Error),
    /// The tokens and the context describe different numbers of tokens, sequences or blocks.
    #[error("{what}: expected {expected}, got {got}")]
    Context {
        /// What was counted.
        what: &'static str,
        /// What the context says.
        expected: usize,
        /// What was given.
        got: usize,
    },
}

impl Error {
    /// The sysexits code of this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(source) => source.exit_code(),
            Self::Setting(source) => source.exit_code(),
            Self::Weights(source) => source.exit_code(),
            Self::Kernel(source) => source.exit_code(),
            Self::Cuda(source) => source.exit_code(),
            Self::Comm(source) => source.exit_code(),
            Self::Dtype(_) | Self::Shape { .. } | Self::Argument { .. } => 65,
            Self::Torch(_) | Self::Operation(_) | Self::MissingStorage { .. } | Self::Context { .. } => 70,
        }
    }
}
