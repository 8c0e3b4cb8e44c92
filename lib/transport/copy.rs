//! Copies a version to a new weight directory, every chunk verified between reading and writing.

use std::fs;
use std::path::Path;

use slime_record::Publication;

use crate::{DiskReader, DiskWriter, Error, Result};

/// Copies the version that lies in `dir` to the new directory `dst`, with the files beside the weights.
///
/// # Errors
/// What lies there is not what was published, `dst` holds something already, or the disk refuses.
pub fn copy(dir: &Path, publication: &Publication, dst: &Path) -> Result<()> {
    let reader = DiskReader::open(dir, publication)?;
    let tensors = reader.tensors()?;
    let mut writer = DiskWriter::create(dst, tensors.clone())?;
    for spec in &tensors {
        writer.write(&spec.name, &reader.tensor(&spec.name)?)?;
    }
    each_side_file(dir, |name, bytes| writer.add_file(name, bytes))?;
    let got = writer.digest().hash;
    if got != publication.hash {
        return Err(Error::Identity { path: dst.to_owned(), expected: publication.hash, got });
    }
    writer.finish()?;
    Ok(())
}

/// Hands over what lies beside the safetensors files and their index, which a writer makes itself.
pub(crate) fn each_side_file(dir: &Path, mut take: impl FnMut(&str, &[u8]) -> Result<()>) -> Result<()> {
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Read { path, source }
    };
    for entry in fs::read_dir(dir).map_err(refused(dir))? {
        let path = entry.map_err(refused(dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        if path.is_file() && !is_weights {
            take(&name, &fs::read(&path).map_err(refused(&path))?)?;
        }
    }
    Ok(())
}
