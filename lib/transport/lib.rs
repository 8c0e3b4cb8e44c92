//! The ways of the weights from trainer to engines: versions as weight directories on disk, verified when read.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod digest;
mod disk_reader;
mod disk_writer;
mod error;

pub use digest::{CHUNK_BYTES, Digest};
pub use disk_reader::DiskReader;
pub use disk_writer::DiskWriter;
pub use error::{Error, Result};
