//! The way by changes: after a whole version each one says only which values differ from the version before, until the next
//! whole one. Both lie below the run directory, so that an engine that comes late or starts again follows the chain from the
//! last whole version on.

mod changes;
mod changes_file;
mod image;
mod outgoing;

use std::path::PathBuf;
use std::time::Duration;

use slime_config::{RunDir, Sync, paths};
use slime_exchange::{Physical, Store};
use slime_record::{Base, Publication};

use self::changes_file::ChangesFile;
use self::image::Image;
use self::outgoing::Last;
use crate::disk::Disk;
use crate::transport::place_of;
use crate::ways::read_publication;
use crate::{Error, Outgoing, Result, Transport, Version};

/// How long a name may stay invisible that an older file of the same writer tells of: pauses, each followed by a look.
const PATIENCE: [Duration; 5] = [
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
];

/// Changes below a run directory, and whole versions at intervals.
#[derive(Debug)]
pub(crate) struct Delta {
    run_dir: RunDir,
    disk: Disk,
    full_interval: u64,
    memory_dir: PathBuf,
    /// The sender's: the version it sent last.
    last: Option<Last>,
    /// The receiver's: the version it took last.
    image: Option<Image>,
}

impl Delta {
    pub fn new(run_dir: &RunDir, config: &Sync) -> Self {
        Self {
            run_dir: run_dir.clone(),
            disk: Disk::new(run_dir),
            full_interval: config.full_interval,
            memory_dir: config.memory_dir.clone().into(),
            last: None,
            image: None,
        }
    }

    /// The publications that lead to `publication`, the last one first: from the one behind the version that is at hand, or
    /// from the last whole one. None where it is gone.
    fn chain(&self, store: &mut dyn Store, publication: &Publication) -> Result<Option<Vec<Publication>>> {
        let mut chain = vec![publication.clone()];
        while let Some(Publication { base: Some(base), version, epoch, .. }) = chain.last() {
            let place = Physical { version: base.version, epoch: base.epoch };
            if base.version >= *version {
                let publication = paths::version(Physical { version: *version, epoch: *epoch });
                let problem = format!("base: expected an earlier version, got {place}");
                return Err(Error::Publication { publication, problem });
            }
            if self.image.as_ref().is_some_and(|image| image.is(place, base.hash)) {
                break;
            }
            match find_base(store, publication, place, *base)? {
                Some(base) => chain.push(base),
                None => return Ok(None),
            }
        }
        Ok(Some(chain))
    }

    /// Makes the image the first version of the chain, and then each of the others.
    fn follow(&mut self, mut chain: Vec<Publication>) -> Result<Option<PathBuf>> {
        // What breaks on the way leaves no image, and the next try begins at a whole version.
        let mut image = match self.image.take() {
            Some(image) if chain.last().is_some_and(|first| first.base.is_some()) => image,
            before => {
                // Its room first.
                drop(before);
                let Some(whole) = chain.pop() else { return Ok(None) };
                let dir = self.disk.place(&whole)?;
                if !dir.exists() {
                    return Ok(None);
                }
                Image::create(&self.memory_dir, &dir, &whole)?
            }
        };
        while let Some(next) = chain.pop() {
            let Some(changes) = ChangesFile::open(&self.disk.place(&next)?)? else { return Ok(None) };
            image.apply(&changes, &next)?;
        }
        Ok(Some(self.image.insert(image).dir().to_owned()))
    }
}

/// The publication of a base, which was published before what builds on it: where it cannot be seen, `publication` is
/// gone as well, or there is a gap.
fn find_base(
    store: &mut dyn Store,
    publication: &Publication,
    place: Physical,
    base: Base,
) -> Result<Option<Publication>> {
    let mut pauses = PATIENCE.iter();
    let found = loop {
        if let Some(found) = read_publication(store, place)? {
            break found;
        }
        // Reading the folder refreshes what is known of its names.
        store.list(paths::VERSIONS)?;
        if !store.exists(&paths::version(place_of(publication)))? {
            return Ok(None);
        }
        let Some(pause) = pauses.next() else {
            return Err(Error::Gap { version: place_of(publication), base: place });
        };
        std::thread::sleep(*pause);
    };
    if found.hash != base.hash {
        let (publication, expected, got) = (paths::version(place), base.hash, found.hash);
        return Err(Error::Base { publication, expected, got });
    }
    Ok(Some(found))
}

impl Transport for Delta {
    fn begin(&mut self, version: Version) -> Result<Box<dyn Outgoing + '_>> {
        outgoing::begin(self, version)
    }

    fn keep(&mut self, _place: Physical) -> Result<()> {
        Ok(())
    }

    fn end(&mut self, _epoch: u64) -> Result<()> {
        self.last = None;
        Ok(())
    }

    fn receive(&mut self, store: &mut dyn Store, publication: &Publication) -> Result<Option<PathBuf>> {
        if let Some(image) = &self.image
            && image.is(place_of(publication), publication.hash)
        {
            return Ok(Some(image.dir().to_owned()));
        }
        match self.chain(store, publication)? {
            Some(chain) => self.follow(chain),
            None => Ok(None),
        }
    }
}
