//! `delta.safetensors`: for each tensor that changed, under its name, the frame that says how, as bytes (U8).

use std::path::{Path, PathBuf};

use slime_weights::{Dtype, TensorSpec, WeightDir, WeightWriter, header};

use super::changes::Changes;
use crate::{Error, Result};

/// Its name in the folder of a version.
const NAME: &str = "delta.safetensors";

/// Writes the folder `dir` of a version, which holds these frames and no more.
///
/// # Errors
/// The folder holds something already, or the disk refuses.
pub fn write(dir: &Path, frames: &[(String, Vec<u8>)]) -> Result<()> {
    let spec = |(name, frame): &(String, Vec<u8>)| TensorSpec {
        name: name.clone(),
        dtype: Dtype::U8,
        shape: vec![frame.len()],
    };
    let specs: Vec<TensorSpec> = frames.iter().map(spec).collect();
    let mut bytes = header(&specs);
    for (_, frame) in frames {
        bytes.extend_from_slice(frame);
    }
    let writer = WeightWriter::create(dir, Vec::new(), usize::MAX)?;
    writer.add_file(NAME, &bytes)?;
    writer.finish()?;
    Ok(())
}

/// An opened file of changes.
#[derive(Debug)]
pub struct ChangesFile {
    path: PathBuf,
    file: WeightDir,
}

impl ChangesFile {
    /// Opens that of the folder `dir`; none where it is not there.
    ///
    /// # Errors
    /// It is broken.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(NAME);
        if !path.exists() {
            return Ok(None);
        }
        let file = WeightDir::open_stored(&path)?;
        Ok(Some(Self { path, file }))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors that changed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.file.names()
    }

    /// What changed in a tensor of `num_elements` elements of `width` bytes; none where nothing did.
    ///
    /// # Errors
    /// The frame is broken or cannot be read.
    pub fn changes(&self, name: &str, num_elements: usize, width: usize) -> Result<Option<Changes>> {
        if self.file.info(name).is_err() {
            return Ok(None);
        }
        let frame = self.file.tensor(name)?.bytes;
        let changes = Changes::unpack(&frame, num_elements, width);
        changes.map(Some).map_err(|reason| self.broken(name, reason))
    }

    /// The error of a broken frame.
    pub fn broken(&self, name: &str, reason: String) -> Error {
        Error::Changes { path: self.path.clone(), tensor: name.to_owned(), reason }
    }
}
