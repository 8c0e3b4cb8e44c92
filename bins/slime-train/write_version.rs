//! Sends the policy as a version of the run, the way that its configuration names.

use std::path::Path;

use slime_cli::Failure;
use slime_exchange::Physical;
use slime_model::Model;
use slime_record::Publication;
use slime_transport::{Transport, Version};
use slime_weights::Quantiser;

use crate::failure;
use crate::published::Published;
use crate::read_carried::Carried;
use crate::write_weights::{each_tensor, side_files, specs};

/// A version that the run wants now.
#[derive(Debug)]
pub struct Wanted {
    /// Its place on the line.
    pub place: Physical,
    /// Whether it has to stand by itself on disk.
    pub is_whole: bool,
    /// Published versions that a reader may still ask for.
    pub readable: Vec<Physical>,
    /// What becomes of matrices on the way.
    pub quantiser: Option<Quantiser>,
}

/// Sends `model` as the version `wanted`, with the files beside the weights in `origin`; on rank 0, to which of a split model
/// the others send their parts.
///
/// # Errors
/// Its place holds something already, or there is no room.
pub fn write_version(
    sender: &mut dyn Transport,
    wanted: Wanted,
    model: &Model,
    origin: &Path,
) -> Result<Publication, Failure> {
    let params = model.params();
    let carried = Carried::of(model, origin)?;
    let plain = [specs(&params.whole_tensors())?, carried.specs.clone()].concat();
    let published = Published::new(plain, wanted.quantiser)?;
    let version = Version {
        place: wanted.place,
        is_whole: wanted.is_whole,
        readable: wanted.readable,
        tensors: published.specs(),
        side_files: published.side_files(side_files(origin, params.kind())?)?,
    };
    let mut outgoing = sender.begin(version).map_err(failure!())?;
    let mut write = |name: &str, bytes: &[u8]| {
        published.each_part(name, bytes, |name, bytes| outgoing.write(name, bytes).map_err(failure!()))
    };
    each_tensor(params.whole_tensors(), &mut write)?;
    carried.write(&mut write)?;
    outgoing.finish().map_err(failure!())
}
