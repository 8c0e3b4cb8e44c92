//! The way through the memory of a node: weight directories on a tmpfs, which engines of the same node map. What has to
//! outlive the node's memory goes to disk, too.

mod outgoing;
pub(crate) mod room;
pub(crate) mod segment;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use slime_config::{RunDir, Sync, paths};
use slime_exchange::{Physical, Store};
use slime_record::Publication;
use slime_weights::checksum;

use self::outgoing::InMemory;
use self::segment::Segment;
use crate::disk::Disk;
use crate::transport::place_of;
use crate::{DiskReader, Error, Outgoing, Result, Transport, Version, copy};

/// Names the run directory in the folder that its versions have in memory.
const OWNER: &str = "RUN";
/// How those folders begin.
const PREFIX: &str = "slime-run-";

/// Weight directories in the memory of a node.
#[derive(Debug)]
pub(crate) struct Shm {
    run_dir: RunDir,
    disk: Disk,
    memory_dir: PathBuf,
    /// The sender's: the files of versions that it wrote.
    segments: BTreeMap<Physical, Segment>,
    /// One that nobody reads or asks for any more, locked, and the directory where it lies.
    spare: Option<(Segment, PathBuf)>,
    /// The receiver's: its hold on the version it took last.
    held: Option<File>,
}

impl Shm {
    pub fn new(run_dir: &RunDir, config: &Sync) -> Self {
        let memory_dir = config.memory_dir.clone().into();
        Self {
            run_dir: run_dir.clone(),
            disk: Disk::new(run_dir),
            memory_dir,
            segments: BTreeMap::new(),
            spare: None,
            held: None,
        }
    }

    /// The folder of this run's versions; its name tells the run directory.
    fn folder(&self) -> Result<PathBuf> {
        let root = self.run_dir.root();
        let root = fs::canonicalize(root).map_err(refused(root))?;
        let hash = checksum(root.as_os_str().as_encoded_bytes());
        Ok(self.memory_dir.join(format!("{PREFIX}{hash:016x}")))
    }

    /// Makes the folder where it is not there, and takes away what runs have left whose directories are gone.
    fn open_folder(&self) -> Result<PathBuf> {
        room::check_memory(&self.memory_dir)?;
        for entry in fs::read_dir(&self.memory_dir).map_err(refused(&self.memory_dir))?.flatten() {
            let is_folder = entry.file_name().to_string_lossy().starts_with(PREFIX);
            let owner = fs::read_to_string(entry.path().join(OWNER)).ok().filter(|_| is_folder);
            if owner.is_some_and(|run| is_gone(Path::new(&run))) {
                // Another user's stays.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = self.folder()?;
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::Write { path: folder, source: error });
            }
            _ => {}
        }
        let root = fs::canonicalize(self.run_dir.root()).map_err(refused(self.run_dir.root()))?;
        let owner = folder.join(OWNER);
        if !owner.exists() {
            fs::write(&owner, root.as_os_str().as_encoded_bytes()).map_err(unwritten(&owner))?;
        }
        Ok(folder)
    }

    /// Removes versions that nobody may ask for, but for one whose file can be written again. Those of a later epoch are a
    /// successor's.
    fn forget(&mut self, folder: &Path, epoch: u64, readable: &[Physical]) -> Result<()> {
        for (place, path) in versions(folder)? {
            if place.epoch > epoch || readable.contains(&place) {
                continue;
            }
            match self.segments.remove(&place).filter(|segment| self.spare.is_none() && segment.lock()) {
                Some(segment) => self.spare = Some((segment, path)),
                None if self.spare.as_ref().is_some_and(|(_, spare)| *spare == path) => {}
                None => fs::remove_dir_all(&path).map_err(unwritten(&path))?,
            }
        }
        Ok(())
    }
}

/// Whether a run directory was removed: a process that does not even see where it lay (in another container) cannot tell.
fn is_gone(run: &Path) -> bool {
    run.parent().is_some_and(Path::exists) && !run.exists()
}

/// The versions in a folder, and where they lie.
fn versions(folder: &Path) -> Result<Vec<(Physical, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(refused(folder))? {
        let path = entry.map_err(refused(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        found.extend(name.and_then(paths::parse_physical).map(|place| (place, path.clone())));
    }
    Ok(found)
}

/// This start of this system.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

fn refused(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Read { path: path.clone(), source }
}

fn unwritten(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Write { path: path.clone(), source }
}

impl Transport for Shm {
    fn begin(&mut self, version: Version) -> Result<Box<dyn Outgoing + '_>> {
        let folder = self.open_folder()?;
        self.forget(&folder, version.place.epoch, &version.readable)?;
        Ok(Box::new(InMemory::begin(self, &folder, version)?))
    }

    fn keep(&mut self, place: Physical) -> Result<()> {
        let on_disk = self.run_dir.join(paths::weights(place));
        let in_memory = self.folder()?.join(place.to_string());
        if on_disk.exists() || !in_memory.exists() {
            return Ok(());
        }
        let path = self.run_dir.join(paths::version(place));
        let bytes = fs::read(&path).map_err(refused(&path))?;
        let publication: Publication = serde_json::from_slice(&bytes).map_err(|error| {
            Error::Publication { publication: paths::version(place), problem: error.to_string() }
        })?;
        copy(&in_memory, &publication, &on_disk)
    }

    fn end(&mut self, epoch: u64) -> Result<()> {
        self.segments.clear();
        self.spare = None;
        let folder = self.folder()?;
        if !folder.exists() || versions(&folder)?.iter().any(|(place, _)| place.epoch > epoch) {
            return Ok(());
        }
        fs::remove_dir_all(&folder).map_err(unwritten(&folder))
    }

    fn receive(&mut self, store: &mut dyn Store, publication: &Publication) -> Result<Option<PathBuf>> {
        let place = place_of(publication);
        let memory = publication.memory.as_ref().ok_or_else(|| Error::Publication {
            publication: paths::version(place),
            problem: "transport shm: expected memory, found none".to_owned(),
        })?;
        let dir = PathBuf::from(&memory.dir);
        self.held = if memory.boot == boot() { segment::hold(&dir)? } else { None };
        if self.held.is_some() {
            DiskReader::open_mapped(&dir, publication)?.verify()?;
            return Ok(Some(dir));
        }
        let on_disk = self.disk.receive(store, publication)?;
        if on_disk.is_none() && memory.host != host() {
            let (got, expected) = (host(), memory.host.clone());
            return Err(Error::OtherNode { version: place, expected, got });
        }
        Ok(on_disk)
    }
}
