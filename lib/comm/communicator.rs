//! The seam between collectives and what carries them: one exchange of messages, a barrier, a split, an abort.

use std::sync::Arc;

use crate::Result;

/// A message on its way out.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The receiver's rank in this group.
    pub to: usize,
    /// What is sent.
    pub data: &'a [u8],
}

/// A buffer for a message on its way in.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The sender's rank in this group.
    pub from: usize,
    /// Filled to its end: a message of another size is an error.
    pub data: &'a mut [u8],
}

/// Tag of the collectives.
pub(crate) const COLLECTIVE: u16 = 0;

/// A group of ranks. Buffers live on the host. All ranks of a group call its collectives in the same order; between
/// two ranks, messages of one tag arrive in the order they were sent. Waiting never spins.
///
/// The typed operations (`all_reduce`, `broadcast`, `all_gather`, ...) are [`crate::Collectives`].
pub trait Communicator: Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// The backend: `single`, `threads` or `mpi`.
    fn backend(&self) -> &'static str;

    /// Sends and receives at once and returns when all buffers may be used again. Messages to the own rank are
    /// received within the same call.
    fn exchange(&self, tag: u16, out: &[Outgoing<'_>], into: &mut [Incoming<'_>]) -> Result<()>;

    /// Hands `message` over for one rank and returns at once, whether that rank is waiting for it or not.
    fn post(&self, tag: u16, message: &Outgoing<'_>) -> Result<()>;

    /// Returns when every rank of the group has called it; sleeps while it waits.
    fn barrier(&self) -> Result<()>;

    /// Collective: the ranks that give the same `colour` form a group, ordered by `key`, then by rank.
    fn split(&self, colour: u32, key: u32) -> Result<Arc<dyn Communicator>>;

    /// Ends the whole world, not only this group, with this rank's exit code. Log the reason first.
    fn abort(&self, code: u8) -> !;

    /// Collective over the world, last call of a rank that succeeded. A process that ends without it tells the
    /// launcher that it failed, and the launcher ends its peers.
    fn finish(&self) -> Result<()>;
}
