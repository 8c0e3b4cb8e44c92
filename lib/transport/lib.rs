//! The ways of the weights from trainer to engines: versions as weight directories on disk, verified when read, and the plan
//! of who sends what to whom between two layouts of ranks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod digest;
mod disk_reader;
mod disk_writer;
mod error;
mod reshard;

pub use digest::{CHUNK_BYTES, Digest};
pub use disk_reader::DiskReader;
pub use disk_writer::DiskWriter;
pub use error::{Error, Result};
pub use reshard::{Hosts, PlannedTensor, Rates, Request, ReshardPlan, Target, Traffic, Transfer, Way, Wire};
