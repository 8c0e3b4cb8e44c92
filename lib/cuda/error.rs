//! What can go wrong between here and a GPU.

/// Why the driver did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host has no CUDA driver.
    #[error("no CUDA driver on this host")]
    NoDriver(#[source] libloading::Error),
    /// The library is not the driver's, or older than CUDA 4.
    #[error("the CUDA driver lacks a function")]
    Incomplete(#[source] libloading::Error),
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's name for the error.
        name: String,
        /// Its number.
        code: i32,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
