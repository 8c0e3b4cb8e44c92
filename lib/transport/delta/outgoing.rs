//! The sender's side: holds the version it sent last, and writes what the next one changes in it.

use std::collections::BTreeMap;

use slime_config::paths;
use slime_record::{Base, Publication, TensorChecksum};
use slime_weights::TensorSpec;

use super::{Delta, changes, changes_file};
use crate::digest::tensor_checksum;
use crate::disk::OnDisk;
use crate::{Digest, Error, Outgoing, Result, Version};

/// The version that was sent last, as a copy in the sender's memory.
#[derive(Debug)]
pub struct Last {
    base: Base,
    tensors: Vec<TensorSpec>,
    bytes: BTreeMap<String, Vec<u8>>,
    /// Versions in changes since the last whole one.
    num_since_whole: u64,
}

/// Begins a version: whole where there is nothing that changes could be told against, where it shall stand by itself, and
/// at intervals.
pub fn begin(delta: &mut Delta, version: Version) -> Result<Box<dyn Outgoing + '_>> {
    // What breaks off has changed a part of it: then there is none, and the next version is whole.
    let last = delta.last.take();
    let last = last.filter(|last| {
        let is_due = version.is_whole || last.num_since_whole + 1 >= delta.full_interval;
        !is_due && last.tensors == version.tensors
    });
    if let Some(last) = last {
        let (frames, checksums) = (Vec::new(), Vec::new());
        return Ok(Box::new(InChanges { delta, version, last, frames, checksums }));
    }
    let (tensors, bytes) = (version.tensors.clone(), BTreeMap::new());
    let on_disk = delta.disk.create(version)?;
    Ok(Box::new(Whole { delta, on_disk, tensors, bytes }))
}

/// A whole version on its way.
struct Whole<'a> {
    delta: &'a mut Delta,
    on_disk: OnDisk,
    tensors: Vec<TensorSpec>,
    bytes: BTreeMap<String, Vec<u8>>,
}

impl Whole<'_> {
    /// Keeps what was sent for the changes of the next version.
    fn end(self: Box<Self>) -> Result<Publication> {
        let Self { delta, on_disk, tensors, bytes } = *self;
        let publication = Box::new(on_disk).finish()?;
        let base = base(&publication);
        delta.last = Some(Last { base, tensors, bytes, num_since_whole: 0 });
        Ok(Publication { transport: "delta".to_owned(), ..publication })
    }
}

impl Outgoing for Whole<'_> {
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.on_disk.write(name, bytes)?;
        self.bytes.insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Publication> {
        self.end()
    }
}

/// A version on its way as what it changes.
struct InChanges<'a> {
    delta: &'a mut Delta,
    version: Version,
    last: Last,
    frames: Vec<(String, Vec<u8>)>,
    checksums: Vec<TensorChecksum>,
}

impl InChanges<'_> {
    fn num_bytes(&self) -> u64 {
        self.frames.iter().map(|(_, frame)| frame.len() as u64).sum()
    }

    /// Sends what the copy now is, where its changes would take as much as it does.
    fn whole(self) -> Result<Publication> {
        let tensors = self.version.tensors.clone();
        let on_disk = self.delta.disk.create(self.version)?;
        let mut whole = Box::new(Whole { delta: self.delta, on_disk, tensors, bytes: BTreeMap::new() });
        for (spec, mut bytes) in whole.tensors.clone().into_iter().zip(in_order(self.last)) {
            whole.on_disk.write(&spec.name, &bytes)?;
            whole.bytes.insert(spec.name, std::mem::take(&mut bytes));
        }
        whole.end()
    }
}

/// The bytes of all tensors in the order in which they are sent.
fn in_order(mut last: Last) -> impl Iterator<Item = Vec<u8>> {
    last.tensors.into_iter().map(move |spec| last.bytes.remove(&spec.name).unwrap_or_default())
}

impl Outgoing for InChanges<'_> {
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let expected = self.version.tensors.get(self.checksums.len());
        let spec = expected.filter(|spec| spec.name == name && spec.num_bytes() == bytes.len());
        let refuse = || Error::Tensors {
            path: self.delta.run_dir.join(paths::weights(self.version.place)),
            tensor: name.to_owned(),
            expected: expected.map_or("no more tensors".to_owned(), |spec| {
                format!("{} with {} bytes", spec.name, spec.num_bytes())
            }),
            got: format!("{} bytes", bytes.len()),
        };
        let width = spec.ok_or_else(refuse)?.dtype.num_bytes();
        let before = self.last.bytes.get_mut(name).ok_or_else(refuse)?;
        let path = || self.delta.run_dir.join(paths::weights(self.version.place));
        let (frame, checksum) =
            rayon::join(|| changes::pack(before, bytes, width), || tensor_checksum(name, bytes));
        let frame = frame.map_err(|source| Error::Write { path: path(), source })?;
        self.frames.extend(frame.map(|frame| (name.to_owned(), frame)));
        self.checksums.push(checksum);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Publication> {
        let path = paths::weights(self.version.place);
        let dir = self.delta.run_dir.join(&path);
        if let Some(missing) = self.version.tensors.get(self.checksums.len()) {
            return Err(slime_weights::Error::NoTensor { path: dir, tensor: missing.name.clone() }.into());
        }
        let num_bytes = self.num_bytes();
        if num_bytes >= self.version.num_bytes() {
            return self.whole();
        }
        let Self { delta, version, last, mut frames, checksums } = *self;
        frames.sort_unstable();
        changes_file::write(&dir, &frames)?;
        let (version, epoch) = (version.place.version, version.place.epoch);
        let publication = Publication {
            transport: "delta".to_owned(),
            base: Some(last.base),
            num_bytes,
            ..Digest::new(checksums).publication(version, epoch, path)
        };
        let num_since_whole = last.num_since_whole + 1;
        delta.last = Some(Last { base: base(&publication), num_since_whole, ..last });
        Ok(publication)
    }
}

fn base(publication: &Publication) -> Base {
    Base { version: publication.version, epoch: publication.epoch, hash: publication.hash }
}
