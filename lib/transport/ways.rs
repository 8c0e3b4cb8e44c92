//! The ways of one run: the one that its configuration names sends, and each publication is read the way it was sent.

use std::path::PathBuf;

use slime_config::{RunDir, Sync, SyncTransport, paths};
use slime_exchange::{Physical, Store};
use slime_record::Publication;

use crate::delta::Delta;
use crate::disk::Disk;
use crate::shm::Shm;
use crate::{Error, Result, Transport};

/// The ways of one run.
#[derive(Debug)]
pub struct Ways {
    transport: SyncTransport,
    disk: Disk,
    delta: Delta,
    shm: Shm,
}

/// What an engine gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The weight directory; it stays as it is until the next version is received.
    pub dir: PathBuf,
    /// How it came.
    pub transport: SyncTransport,
    /// What identifies the weights: every byte was verified against it.
    pub hash: u64,
}

impl Ways {
    /// Those of the run in `run_dir`.
    pub fn new(run_dir: &RunDir, config: &Sync) -> Self {
        Self {
            transport: config.transport,
            disk: Disk::new(run_dir),
            delta: Delta::new(run_dir, config),
            shm: Shm::new(run_dir, config),
        }
    }

    /// The way that versions are sent.
    pub fn sender(&mut self) -> &mut dyn Transport {
        self.of(self.transport)
    }

    /// The way of this name.
    pub fn of(&mut self, transport: SyncTransport) -> &mut dyn Transport {
        match transport {
            SyncTransport::Disk => &mut self.disk,
            SyncTransport::Delta => &mut self.delta,
            SyncTransport::Shm => &mut self.shm,
        }
    }

    /// The trainer of this epoch ends: what was sent in earlier starts, too, and lies outside the run directory goes.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn end(&mut self, epoch: u64) -> Result<()> {
        SyncTransport::ALL.into_iter().try_for_each(|transport| self.of(transport).end(epoch))
    }

    /// The weights of a published version; none where it is gone, or not there yet.
    ///
    /// # Errors
    /// What is there is not what was published, or cannot be reached from here.
    pub fn receive(&mut self, store: &mut dyn Store, place: Physical) -> Result<Option<Received>> {
        let Some(publication) = read_publication(store, place)? else { return Ok(None) };
        self.receive_published(store, &publication)
    }

    /// The same of a publication that was read already.
    ///
    /// # Errors
    /// As [`Ways::receive`].
    pub fn receive_published(
        &mut self,
        store: &mut dyn Store,
        publication: &Publication,
    ) -> Result<Option<Received>> {
        let name = &publication.transport;
        let transport = SyncTransport::from_name(name).ok_or_else(|| {
            let place = Physical { version: publication.version, epoch: publication.epoch };
            Error::UnknownTransport { publication: paths::version(place), got: name.clone() }
        })?;
        let dir = self.of(transport).receive(store, publication)?;
        Ok(dir.map(|dir| Received { dir, transport, hash: publication.hash }))
    }
}

/// The publication of a version, where it can be seen.
///
/// # Errors
/// The store refuses, or it is none.
pub(crate) fn read_publication(store: &mut dyn Store, place: Physical) -> Result<Option<Publication>> {
    let path = paths::version(place);
    let Some(bytes) = store.read(&path)? else { return Ok(None) };
    let publication: Publication = serde_json::from_slice(&bytes).map_err(|error| Error::Publication {
        publication: path.clone(),
        problem: format!("not a publication: {error}"),
    })?;
    let of = Physical { version: publication.version, epoch: publication.epoch };
    if of != place {
        let problem = format!("expected version {place}, got {of}");
        return Err(Error::Publication { publication: path, problem });
    }
    Ok(Some(publication))
}
