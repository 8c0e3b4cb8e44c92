//! The way by disk: a weight directory below the run directory for each version.

use std::path::{Component, Path, PathBuf};

use slime_config::{RunDir, paths};
use slime_exchange::{Physical, Store};
use slime_record::Publication;

use crate::transport::place_of;
use crate::{DiskReader, DiskWriter, Error, Outgoing, Result, Transport, Version};

/// Weight directories below a run directory.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    run_dir: RunDir,
}

impl Disk {
    pub fn new(run_dir: &RunDir) -> Self {
        Self { run_dir: run_dir.clone() }
    }

    /// Where the files of a version lie.
    ///
    /// # Errors
    /// Its publication names a place outside the run directory.
    pub fn place(&self, publication: &Publication) -> Result<PathBuf> {
        let place = place_of(publication);
        let path = publication.path.clone().unwrap_or_else(|| paths::weights(place));
        if Path::new(&path).components().all(|part| matches!(part, Component::Normal(_))) {
            return Ok(self.run_dir.join(path));
        }
        let problem = format!("path: expected one below the run directory, got {path}");
        Err(Error::Publication { publication: paths::version(place), problem })
    }

    /// Begins the weight directory of a version.
    pub fn create(&self, version: Version) -> Result<OnDisk> {
        let num_bytes = version.num_bytes();
        let writer = DiskWriter::create(self.run_dir.join(paths::weights(version.place)), version.tensors)?;
        for (name, bytes) in &version.side_files {
            writer.add_file(name, bytes)?;
        }
        Ok(OnDisk { place: version.place, num_bytes, writer })
    }
}

impl Transport for Disk {
    fn begin(&mut self, version: Version) -> Result<Box<dyn Outgoing + '_>> {
        Ok(Box::new(self.create(version)?))
    }

    fn keep(&mut self, _place: Physical) -> Result<()> {
        Ok(())
    }

    fn end(&mut self, _epoch: u64) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self, _store: &mut dyn Store, publication: &Publication) -> Result<Option<PathBuf>> {
        let dir = self.place(publication)?;
        if !dir.exists() {
            return Ok(None);
        }
        DiskReader::open(&dir, publication)?.verify()?;
        Ok(Some(dir))
    }
}

/// A version on its way to disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    place: Physical,
    num_bytes: u64,
    writer: DiskWriter,
}

impl Outgoing for OnDisk {
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.writer.write(name, bytes)
    }

    fn finish(self: Box<Self>) -> Result<Publication> {
        let Physical { version, epoch } = self.place;
        let publication = self.writer.finish()?.publication(version, epoch, paths::weights(self.place));
        Ok(Publication { num_bytes: self.num_bytes, ..publication })
    }
}
