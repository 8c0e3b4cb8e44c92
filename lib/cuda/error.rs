//! What can go wrong between here and a GPU.

use std::path::PathBuf;

/// Why the driver or the compiler did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host has no CUDA driver.
    #[error("no CUDA driver on this host")]
    NoDriver,
    /// This host has no CUDA compiler library.
    #[error("no CUDA compiler on this host: libnvrtc.so cannot be opened")]
    NoCompiler,
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's or compiler's name for the error.
        name: String,
        /// Its number.
        code: u32,
    },
    /// A kernel does not compile.
    #[error("{program} does not compile for {arch}: {log}")]
    Compile {
        /// The file.
        program: String,
        /// Such as `sm_90`.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A text that C cannot take.
    #[error("{what} has a zero byte")]
    Text {
        /// What it is.
        what: &'static str,
    },
    /// The folder of compiled kernels refuses.
    #[error("{path}: {source}", path = path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// The sysexits code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoDriver | Self::NoCompiler | Self::Call { .. } => 69,
            Self::Compile { .. } | Self::Text { .. } => 70,
            Self::Cache { .. } => 74,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoCompiler => Some("put the lib folder of the wheel nvidia-cuda-nvrtc on LD_LIBRARY_PATH"),
            Self::Cache { .. } => Some("SLIME_KERNEL_CACHE chooses another folder for compiled kernels"),
            Self::NoDriver | Self::Call { .. } | Self::Compile { .. } | Self::Text { .. } => None,
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
