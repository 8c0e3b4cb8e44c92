//! What every way of the weights does: takes a version from the trainer, and brings it to an engine as a weight directory.

use std::fmt::Debug;
use std::path::PathBuf;

use slime_exchange::{Physical, Store};
use slime_record::Publication;
use slime_weights::TensorSpec;

use crate::Result;

/// A version that is to be sent.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its place on the line.
    pub place: Physical,
    /// Whether it has to stand by itself on disk.
    pub is_whole: bool,
    /// Published versions that a reader may still ask for.
    pub readable: Vec<Physical>,
    /// Its tensors, in the order in which they will be written.
    pub tensors: Vec<TensorSpec>,
    /// Files beside the weights, such as `config.json`, by name.
    pub side_files: Vec<(String, Vec<u8>)>,
}

impl Version {
    /// Bytes of its tensors.
    pub fn num_bytes(&self) -> u64 {
        self.tensors.iter().map(|spec| spec.num_bytes() as u64).sum()
    }
}

/// A way of the weights from the trainer to the engines. Each side has one of its own: what the trainer's keeps to send the
/// next version, and what an engine's keeps to take it, are different things.
pub trait Transport: Debug + Send {
    /// Begins to send a version.
    ///
    /// # Errors
    /// There is no room or no place for it.
    fn begin(&mut self, version: Version) -> Result<Box<dyn Outgoing + '_>>;

    /// Puts a version that was sent on disk, whole, where it is not there already; it is then read there when it is gone
    /// from where it was sent.
    ///
    /// # Errors
    /// The disk refuses.
    fn keep(&mut self, place: Physical) -> Result<()>;

    /// The trainer of this epoch ends: what it holds outside the run directory goes.
    ///
    /// # Errors
    /// It cannot be removed.
    fn end(&mut self, epoch: u64) -> Result<()>;

    /// The weight directory of a published version, every byte of it verified; it stays as it is until the next call. None
    /// where the version is gone, or not there yet.
    ///
    /// # Errors
    /// What is there is not what was published, or cannot be reached from here.
    fn receive(&mut self, store: &mut dyn Store, publication: &Publication) -> Result<Option<PathBuf>>;
}

/// A version on its way; dropped without `finish`, it leaves nothing behind.
pub trait Outgoing {
    /// Takes the next tensor: its little-endian, row-major elements.
    ///
    /// # Errors
    /// It is not the next one, has another size than announced, or there is no room.
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Makes it durable as far as its way is, and says how it is read. Nobody looks for it before that is published.
    ///
    /// # Errors
    /// A tensor was not written, or there is no room.
    fn finish(self: Box<Self>) -> Result<Publication>;
}

/// The place that a publication is of.
pub(crate) fn place_of(publication: &Publication) -> Physical {
    Physical { version: publication.version, epoch: publication.epoch }
}
