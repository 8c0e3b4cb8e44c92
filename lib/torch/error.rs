//! What can go wrong between Rust and libtorch.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch refused an operation.
    #[error("{operation}: {message}")]
    Torch {
        /// The operation of this crate.
        operation: &'static str,
        /// What libtorch said.
        message: String,
    },
    /// The CUDA libraries of torch could not be opened.
    #[error("CUDA is not available: cannot open {library}: {message}")]
    CudaLibrary {
        /// The file that was looked for.
        library: String,
        /// What the dynamic linker said.
        message: String,
    },
    /// The libraries opened but no device answers.
    #[error("CUDA is not available: its libraries are loaded, but no device is visible")]
    NoDevice,
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] slime_comm::Error),
    /// A closure of a custom function failed or panicked.
    #[error("custom function: {0}")]
    Closure(String),
}

impl Error {
    /// The sysexits code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::CudaLibrary { .. } | Self::NoDevice => 69,
            Self::Comm(error) => error.exit_code(),
            Self::Torch { .. } | Self::Closure(_) => 70,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::CudaLibrary { .. } => Some(
                "put the lib folder of the torch wheel and of the nvidia wheels on LD_LIBRARY_PATH, or compute on the CPU with run.device=cpu",
            ),
            Self::NoDevice => Some("check nvidia-smi and CUDA_VISIBLE_DEVICES"),
            Self::Comm(error) => error.hint(),
            Self::Torch { .. } | Self::Closure(_) => None,
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
