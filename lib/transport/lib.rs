//! The ways of the weights from trainer to engines behind one trait: by disk, by what changed, through the memory of a node,
//! verified when read; and the plan of who sends what to whom between two layouts of ranks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod copy;
mod delta;
mod digest;
mod disk;
mod disk_reader;
mod disk_writer;
mod error;
pub mod measure;
mod reshard;
mod shm;
#[cfg(test)]
mod tests;
mod transport;
mod ways;

pub use copy::copy;
pub use digest::{CHUNK_BYTES, Digest};
pub use disk_reader::DiskReader;
pub use disk_writer::DiskWriter;
pub use error::{Error, Result};
pub use reshard::{Hosts, PlannedTensor, Rates, Request, ReshardPlan, Target, Traffic, Transfer, Way, Wire};
pub use transport::{Outgoing, Transport, Version};
pub use ways::{Received, Ways};
