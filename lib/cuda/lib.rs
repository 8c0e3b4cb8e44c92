//! The CUDA driver, opened where there is one; no binary links CUDA.

mod driver;
mod error;
mod peer;

pub use error::{Error, Result};
pub use peer::{PeerCopy, peer_copies};
