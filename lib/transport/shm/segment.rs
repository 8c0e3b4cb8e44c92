//! The file of a version in memory: mapped by its trainer for as long as it may be written again, and locked against that by
//! the engines that read it.
//!
//! Memory that is new costs several times what copying into it does. So a trainer writes the file of a version that nobody
//! asks for any more again, unless an engine still reads it; locks end with their processes.
#![expect(unsafe_code, reason = "maps files that this process alone writes")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use crate::{Error, Result};

/// The name of the file in the weight directory.
pub const NAME: &str = "model.safetensors";

/// A file in memory that this process writes.
#[derive(Debug)]
pub struct Segment {
    file: File,
    map: MmapMut,
}

impl Segment {
    /// Makes the file of `num_bytes` at `path`, locked, with all of its memory.
    ///
    /// # Errors
    /// There is no room.
    pub fn create(path: &Path, num_bytes: usize) -> Result<Self> {
        let refused = |source: io::Error| Error::Write { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path).map_err(refused)?;
        // What a file has no memory for would end the process when it is written through the map.
        fallocate(&file, FallocateFlags::empty(), 0, num_bytes as u64)
            .map_err(|error| refused(error.into()))?;
        // SAFETY: the file was made by this process under a name of its own, has its full length, and is cut short by nobody;
        // others read it only under the lock that this process does not hold then.
        let map = unsafe { MmapOptions::new().len(num_bytes).map_mut(&file) }.map_err(refused)?;
        // Where the kernel does not know the advice, pages are mapped one by one.
        let _ = map.advise(Advice::PopulateWrite);
        let segment = Self { file, map };
        segment.lock();
        Ok(segment)
    }

    /// Whether nobody reads it, and nobody will until it is unlocked.
    pub fn lock(&self) -> bool {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// It may be read.
    ///
    /// # Errors
    /// The system refuses.
    pub fn unlock(&self) -> Result<()> {
        flock(&self.file, FlockOperation::Unlock)
            .map_err(|error| Error::Write { path: NAME.into(), source: error.into() })
    }

    /// What is in it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// A reader's hold on the file in `dir`: while it lasts nobody writes it. None where the version is gone, or going.
///
/// # Errors
/// It cannot be opened.
pub fn hold(dir: &Path) -> Result<Option<File>> {
    let path = dir.join(NAME);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Read { path, source }),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
        return Ok(None);
    }
    // Between the two calls it may have become the file of another version.
    let is_same = |other: std::fs::Metadata| file.metadata().is_ok_and(|mine| mine.ino() == other.ino());
    Ok(std::fs::metadata(&path).is_ok_and(is_same).then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_not_written_and_what_is_written_is_not_read() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(hold(dir.path()).unwrap().is_none());
        let mut segment = Segment::create(&dir.path().join(NAME), 10_000).unwrap();
        segment.bytes()[9_999] = 7;
        assert!(hold(dir.path()).unwrap().is_none(), "it is being written");
        segment.unlock().unwrap();
        let held = hold(dir.path()).unwrap().unwrap();
        assert!(!segment.lock(), "it is being read");
        drop(held);
        assert!(segment.lock());
        assert_eq!(std::fs::read(dir.path().join(NAME)).unwrap()[9_999], 7);
        let error = Segment::create(&dir.path().join(NAME), 1).unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{error}");
    }
}
