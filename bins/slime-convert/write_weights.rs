//! Writes a checkpoint as a weight directory in the Hugging Face layout.

use std::path::{Path, PathBuf};

use slime_cli::Failure;
use slime_weights::{Dtype, Error, WeightWriter, first_not_finite};

use crate::args::DtypeName;
use crate::failure;
use crate::read_weights::{Checkpoint, side_files_of_dir};

/// How a checkpoint is written.
pub struct Target {
    dtype: Option<Dtype>,
    max_shard_bytes: usize,
    /// Where the files beside the weights come from, when not from the source.
    origin_hf: Option<PathBuf>,
}

impl Target {
    pub fn new(dtype: Option<DtypeName>, max_shard_bytes: usize, origin_hf: Option<PathBuf>) -> Self {
        Self { dtype: dtype.map(Dtype::from), max_shard_bytes, origin_hf }
    }
}

/// Converts `src` to the new directory `dst`.
pub fn convert(src: &Path, dst: &Path, target: &Target) -> Result<(), Failure> {
    let dtype = target.dtype;
    let checkpoint = Checkpoint::open(src)?;
    let side_files = match &target.origin_hf {
        Some(origin) => side_files_of_dir(origin, dtype)?,
        None => checkpoint.side_files(dtype)?,
    };
    if target.origin_hf.is_none() {
        for name in checkpoint.check()? {
            tracing::warn!("{}: tensor {name} is copied, but the model does not use it", src.display());
        }
    }
    let tensors = checkpoint.tensors(dtype)?;
    let mut writer = WeightWriter::create(dst, tensors.clone(), target.max_shard_bytes).map_err(failure)?;
    for spec in &tensors {
        let bytes = checkpoint.read(spec)?;
        if let Some(index) = first_not_finite(&bytes, spec.dtype) {
            return Err(failure(Error::NotFinite { path: src.to_owned(), tensor: spec.name.clone(), index }));
        }
        writer.write(&spec.name, &bytes).map_err(failure)?;
    }
    for (name, content) in side_files {
        writer.add_file(&name, &content).map_err(failure)?;
    }
    writer.finish().map_err(failure)?;
    tracing::info!("wrote {} tensors to {}", tensors.len(), dst.display());
    Ok(())
}
