//! Writes the policy as a version of the run: a weight directory and what its publication says of it.

use std::path::Path;

use slime_cli::Failure;
use slime_config::paths;
use slime_exchange::Physical;
use slime_model::Model;
use slime_record::Publication;
use slime_transport::DiskWriter;

use crate::failure;
use crate::read_carried::Carried;
use crate::write_weights::{each_tensor, side_files, specs};

/// Makes `weights/<place>` below `run`, with the files beside the weights in `origin`; on rank 0, to which of a split model
/// the others send their parts.
///
/// # Errors
/// The directory holds something already, or the disk refuses.
pub fn write_version(
    run: &Path,
    place: Physical,
    model: &Model,
    origin: &Path,
) -> Result<Publication, Failure> {
    let params = model.params();
    let path = paths::weights(place);
    let carried = Carried::of(model, origin)?;
    let all = [specs(&params.whole_tensors())?, carried.specs.clone()].concat();
    let mut writer = DiskWriter::create(run.join(&path), all).map_err(failure!())?;
    each_tensor(params.whole_tensors(), |name, bytes| writer.write(name, bytes).map_err(failure!()))?;
    carried.write(|name, bytes| writer.write(name, bytes).map_err(failure!()))?;
    for (name, bytes) in side_files(origin, model.params().kind())? {
        writer.add_file(&name, &bytes).map_err(failure!())?;
    }
    Ok(writer.finish().map_err(failure!())?.publication(place.version, place.epoch, path))
}
