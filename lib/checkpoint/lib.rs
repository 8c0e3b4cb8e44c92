//! Trainer state in HDF5: one closed file per rank, a JSON index of boxes and checksums, and COMPLETE last. Knows raw
//! buffers and names, no tensors library, and loads onto any number of ranks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod folder;
mod index;
mod rank_file;
mod read;
mod shard;
mod write;
mod writer;

pub use error::{Error, Result};
pub use folder::{checkpoints, newest, prune};
pub use read::Checkpoint;
pub use shard::{Dtype, Shard, Snapshot, TensorInfo};
pub use write::{complete, mark, write};
pub use writer::Writer;
