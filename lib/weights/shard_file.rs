//! A file that is being written while other threads make durable what came before.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crate::{Error, Result};

/// Bytes after which the disk is asked for what came so far.
const SYNC_BYTES: u64 = 64 << 20;

/// Bytes of an opened file.
#[derive(Debug, Clone)]
pub struct FileRange<'a> {
    /// Where it was opened.
    pub path: &'a Path,
    /// The file; its cursor belongs to whoever holds the range.
    pub file: &'a File,
    /// The bytes, from its beginning.
    pub range: Range<u64>,
}

/// The file that is being written.
#[derive(Debug)]
pub(crate) struct ShardFile {
    /// The place the file is for, as messages name it.
    path: PathBuf,
    file: File,
    /// Bytes that the disk was not asked for yet.
    unsynced: u64,
    pending: Option<Pending>,
}

/// A file that another thread makes durable, so that the disk works while the next bytes come.
#[derive(Debug)]
pub(crate) struct Pending {
    path: PathBuf,
    thread: JoinHandle<io::Result<()>>,
}

impl Pending {
    fn start(path: &Path, file: File) -> Self {
        let thread = std::thread::spawn(move || file.sync_all());
        Self { path: path.to_owned(), thread }
    }

    /// Waits until the file is durable.
    pub(crate) fn wait(self) -> Result<()> {
        let panicked = |_| Err(io::Error::other("the thread that syncs panicked"));
        self.thread.join().unwrap_or_else(panicked).map_err(Error::write(&self.path))
    }
}

impl ShardFile {
    /// Makes the file `at`, which messages call `path`.
    pub(crate) fn create(at: &Path, path: PathBuf) -> Result<Self> {
        let file = File::create(at).map_err(Error::write(&path))?;
        Ok(Self { path, file, unsynced: 0, pending: None })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::write(&self.path))?;
        self.sync_behind(bytes.len() as u64)
    }

    /// Appends bytes of another file; the kernel copies them, or lets both files share them.
    pub(crate) fn copy(&mut self, from: &FileRange<'_>) -> Result<()> {
        let FileRange { path, mut file, range } = from.clone();
        file.seek(SeekFrom::Start(range.start)).map_err(Error::read(path))?;
        let expected = range.end - range.start;
        let got = io::copy(&mut file.take(expected), &mut self.file).map_err(Error::write(&self.path))?;
        if got != expected {
            return Err(Error::Truncated {
                path: path.to_owned(),
                what: "its tensors".to_owned(),
                expected: range.end,
                got: range.start + got,
            });
        }
        self.sync_behind(got)
    }

    /// Ends the file; another thread makes it durable.
    pub(crate) fn close(self) -> Result<Pending> {
        self.pending.map_or(Ok(()), Pending::wait)?;
        Ok(Pending::start(&self.path, self.file))
    }

    fn sync_behind(&mut self, num_bytes: u64) -> Result<()> {
        self.unsynced += num_bytes;
        let is_idle = self.pending.as_ref().is_none_or(|pending| pending.thread.is_finished());
        if self.unsynced >= SYNC_BYTES && is_idle {
            self.pending.take().map_or(Ok(()), Pending::wait)?;
            let file = self.file.try_clone().map_err(Error::write(&self.path))?;
            (self.pending, self.unsynced) = (Some(Pending::start(&self.path, file)), 0);
        }
        Ok(())
    }
}
