//! Ranks and collectives: single, threads, MPI through a plug-in, and NCCL between GPUs; the mesh of named axes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod collectives;
mod communicator;
mod element;
mod error;
mod interface;
mod launcher;
mod mesh;
mod mpi;
mod nccl;
mod plugin;
mod reduce;
mod single;
mod threads;
mod world;

pub use collectives::{Collectives, even_counts};
pub use communicator::{Communicator, Incoming, Outgoing};
pub use element::{Dtype, Element, Op};
pub use error::{Error, Result};
pub use interface::{Interface, interfaces};
pub use launcher::{Placement, Source};
pub use mesh::{Axis, Layout, Mesh};
pub use mpi::Mpi;
pub use nccl::Nccl;
pub use plugin::check_plugin;
pub use single::Single;
pub use threads::Threads;
pub use world::world;
