//! A version on its way into memory: copied there once, its checksums taken meanwhile.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use slime_config::paths;
use slime_exchange::Physical;
use slime_record::{NodeMemory, Publication, TensorChecksum};
use slime_weights::{TensorSpec, WeightWriter, checksum, header};

use super::segment::{NAME, Segment};
use super::{Shm, boot, host, room, unwritten};
use crate::{CHUNK_BYTES, Digest, Error, Outgoing, Result, Version, copy};

/// Bytes that side files and the pages of small files may take beyond the tensors.
const SLACK_BYTES: usize = 1 << 20;

/// A version on its way into memory.
pub struct InMemory<'a> {
    shm: &'a mut Shm,
    place: Physical,
    is_whole: bool,
    dir: PathBuf,
    /// Of the directory; the tensors are in the segment.
    writer: WeightWriter,
    segment: Segment,
    tensors: Vec<TensorSpec>,
    /// Bytes of the segment that are written.
    filled: usize,
    checksums: Vec<TensorChecksum>,
}

impl<'a> InMemory<'a> {
    /// Begins a version in `folder`, in the file of one that is not needed any more where that fits.
    pub fn begin(shm: &'a mut Shm, folder: &Path, version: Version) -> Result<Self> {
        let dir = folder.join(version.place.to_string());
        let writer = WeightWriter::create(&dir, Vec::new(), usize::MAX)?;
        let head = header(&version.tensors);
        let num_bytes = head.len() + version.num_bytes() as usize;
        let path = writer.temporary().join(NAME);
        let mut segment = if let Some(segment) = shm.recycle(&path, num_bytes)? {
            segment
        } else {
            room::check(folder, (num_bytes + SLACK_BYTES) as u64)?;
            Segment::create(&path, num_bytes)?
        };
        for (name, bytes) in &version.side_files {
            writer.add_file(name, bytes)?;
        }
        segment.bytes()[..head.len()].copy_from_slice(&head);
        let Version { place, is_whole, tensors, .. } = version;
        let (filled, checksums) = (head.len(), Vec::new());
        Ok(Self { shm, place, is_whole, dir, writer, segment, tensors, filled, checksums })
    }
}

impl Outgoing for InMemory<'_> {
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let expected = self.tensors.get(self.checksums.len());
        if expected.is_none_or(|spec| spec.name != name || spec.num_bytes() != bytes.len()) {
            let expected = expected.map_or("no more tensors".to_owned(), |spec| {
                format!("{} with {} bytes", spec.name, spec.num_bytes())
            });
            let got = format!("{} bytes", bytes.len());
            return Err(Error::Tensors { path: self.dir.clone(), tensor: name.to_owned(), expected, got });
        }
        let place = &mut self.segment.bytes()[self.filled..self.filled + bytes.len()];
        let chunks = place.par_chunks_mut(CHUNK_BYTES).zip(bytes.par_chunks(CHUNK_BYTES));
        let checksums = chunks.map(|(to, from)| {
            let (checksum, ()) = rayon::join(|| checksum(from), || to.copy_from_slice(from));
            checksum
        });
        let chunks = checksums.collect();
        self.checksums.push(TensorChecksum { name: name.to_owned(), chunks });
        self.filled += bytes.len();
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Publication> {
        let Self { shm, place, is_whole, dir, writer, segment, tensors, checksums, .. } = *self;
        if let Some(missing) = tensors.get(checksums.len()) {
            return Err(slime_weights::Error::NoTensor { path: dir, tensor: missing.name.clone() }.into());
        }
        writer.finish()?;
        segment.unlock()?;
        shm.segments.insert(place, segment);
        let path = paths::weights(place);
        let publication = Digest::new(checksums).publication(place.version, place.epoch, &path);
        if is_whole {
            copy(&dir, &publication, &shm.run_dir.join(&path))?;
        }
        let memory = NodeMemory { host: host(), boot: boot(), dir: dir.display().to_string() };
        Ok(Publication {
            transport: "shm".to_owned(),
            path: is_whole.then_some(path),
            memory: Some(memory),
            num_bytes: tensors.iter().map(|spec| spec.num_bytes() as u64).sum(),
            ..publication
        })
    }
}

impl Shm {
    /// The file of a version that is not needed any more, moved to `path`, where there is one of this size.
    fn recycle(&mut self, path: &Path, num_bytes: usize) -> Result<Option<Segment>> {
        let Some((mut segment, dir)) = self.spare.take() else { return Ok(None) };
        let is_fit = segment.bytes().len() == num_bytes;
        if is_fit {
            std::fs::rename(dir.join(NAME), path).map_err(unwritten(path))?;
        }
        std::fs::remove_dir_all(&dir).map_err(unwritten(&dir))?;
        Ok(is_fit.then_some(segment))
    }
}
