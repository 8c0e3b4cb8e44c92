//! The CUDA driver and compiler, opened where they are; no binary links CUDA.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cubin_cache;
mod device;
mod driver;
mod error;
mod event;
mod function;
mod graph;
mod peer;
mod pinned;
mod program;

pub use cubin_cache::CubinCache;
pub use device::Device;
pub use error::{Error, Result};
pub use event::Event;
pub use function::{Function, Launch};
pub use graph::Graph;
pub use peer::{PeerCopy, peer_copies};
pub use pinned::Pinned;
pub use program::{Program, compile};
