//! Old files of a run packed into seekable zstd, read from there as from their own places; and zstd streams.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod manifest;
mod pack;
mod packed;
mod restore;
mod seekable;
mod select;
mod stream;

pub use error::{Error, Result};
pub use manifest::{Frame, Manifest, Member};
pub use pack::{Outcome, Phase, pack};
pub use packed::{Packed, read_file, read_run_file};
pub use restore::{Restored, restore};
pub use select::{Selection, ended_logs, step_files};
pub use stream::{pack_bytes, unpack_stream};
