//! Copies a version to a new weight directory, every chunk verified between reading and writing.

use std::fs;
use std::path::Path;

use slime_cli::{Failure, exit};
use slime_transport::{DiskReader, DiskWriter};

use crate::failure;
use crate::read_publications::read_publications;

/// Copies the newest version of the run, or `version`, to the new directory `dst`.
pub fn push(run: &Path, dst: &Path, version: Option<u64>) -> Result<(), Failure> {
    let publications = read_publications(run, version)?;
    let on_disk = publications.iter().rev().find_map(|p| Some((p, p.dir.as_ref()?)));
    let (published, dir) = on_disk.ok_or_else(|| {
        Failure::new(exit::NO_INPUT, format!("{}: no such version lies on disk", run.display()))
    })?;
    let reader = DiskReader::open(dir, &published.publication).map_err(failure)?;
    let tensors = reader.tensors().map_err(failure)?;
    let mut writer = DiskWriter::create(dst, tensors.clone()).map_err(failure)?;
    for spec in &tensors {
        let bytes = reader.tensor(&spec.name).map_err(failure)?;
        writer.write(&spec.name, &bytes).map_err(failure)?;
    }
    copy_side_files(dir, &writer)?;
    let digest = writer.finish().map_err(failure)?;
    if digest.hash != published.publication.hash {
        let expected = published.publication.hash;
        let message =
            format!("{}: expected the weights {expected:016x}, got {:016x}", dst.display(), digest.hash);
        return Err(Failure::data(message));
    }
    tracing::info!("pushed {} to {}", published.name(), dst.display());
    Ok(())
}

/// Copies what lies beside the safetensors files and their index, which the writer makes itself.
fn copy_side_files(dir: &Path, writer: &DiskWriter) -> Result<(), Failure> {
    for entry in fs::read_dir(dir).map_err(|error| Failure::open(dir.display(), &error))? {
        let path = entry.map_err(|error| Failure::io(dir.display(), &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        if path.is_file() && !is_weights {
            let content = fs::read(&path).map_err(|error| Failure::io(path.display(), &error))?;
            writer.add_file(&name, &content).map_err(failure)?;
        }
    }
    Ok(())
}
