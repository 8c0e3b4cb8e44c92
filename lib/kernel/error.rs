//! What can go wrong when a kernel is called.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver or the compiler refuses.
    #[error(transparent)]
    Cuda(#[from] slime_cuda::Error),
    /// libtorch refuses.
    #[error(transparent)]
    Torch(#[from] slime_torch::Error),
    /// An operation of tch refuses.
    #[error(transparent)]
    Tch(#[from] tch::TchError),
    /// A tensor that the kernel cannot take.
    #[error("{kernel}: {what}: expected {expected}, got {got}")]
    Argument {
        /// The kernel.
        kernel: &'static str,
        /// Which argument.
        what: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: String,
    },
}

impl Error {
    /// The sysexits code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cuda(error) => error.exit_code(),
            Self::Torch(error) => error.exit_code(),
            Self::Tch(_) | Self::Argument { .. } => 70,
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
