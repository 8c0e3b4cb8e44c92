//! The raw calls on the real filesystem: mode 0700, mapped reads populated at once, `pread` where that is refused.
#![expect(unsafe_code, reason = "maps closed files read-only and starts write-back")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Bytes, Fill, RawFiles, SealedStore};
use crate::holder::Holder;
use crate::{Error, Result};

/// Files up to this size are read, larger ones mapped: a mapping costs more than copying a page or two.
const MIN_MAPPED_BYTES: u64 = 64 * 1024;

/// Bytes after which the disk is told to begin.
const WRITE_BACK_BYTES: u64 = 4 << 20;

/// The store of a run directory.
pub type FsStore = SealedStore<FsFiles>;

/// Raw calls below one folder.
#[derive(Debug, Clone)]
pub struct FsFiles {
    root: PathBuf,
    started: Instant,
}

impl FsStore {
    /// Opens the run directory `root`, making it (mode 0700) when missing.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        make_dir(&root)?;
        Ok(Self::over(FsFiles { root, started: Instant::now() }, Holder::this().to_string()))
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| Error::io("create folder", &dir.display().to_string(), source))
}

fn absent_is_none<T>(op: &'static str, path: &str, outcome: io::Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(None)
        }
        Err(source) => Err(Error::io(op, path, source)),
    }
}

impl FsFiles {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn map(file: &File) -> io::Result<memmap2::Mmap> {
        // SAFETY: the protocol never changes or truncates a committed file, so the mapped bytes stay as they are.
        let map = unsafe { memmap2::Mmap::map(file)? };
        // Populating reports a truncated or unreadable file as an error here, not as SIGBUS later.
        map.advise(memmap2::Advice::PopulateRead)?;
        Ok(map)
    }
}

/// Has the disk begin with what is written while more is being made, so the sync at the end finds little left.
struct Eager<'a> {
    file: &'a File,
    num_bytes: u64,
    num_started: u64,
    failure: Option<io::Error>,
}

impl Write for Eager<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&mut &*self.file).write(bytes) {
            Ok(written) => {
                self.num_bytes += written as u64;
                if self.num_bytes - self.num_started >= WRITE_BACK_BYTES {
                    self.start_write_back();
                }
                Ok(written)
            }
            Err(error) => {
                let told = io::Error::from(error.kind());
                self.failure = Some(error);
                Err(told)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Eager<'_> {
    fn start_write_back(&mut self) {
        let (from, len) = (self.num_started as i64, (self.num_bytes - self.num_started) as i64);
        // SAFETY: a system call on an open file; it changes no memory. Where it is not known nothing is lost: the sync
        // at the end does all of the work.
        let _ =
            unsafe { libc::sync_file_range(self.file.as_raw_fd(), from, len, libc::SYNC_FILE_RANGE_WRITE) };
        self.num_started = self.num_bytes;
    }
}

impl RawFiles for FsFiles {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn pause(&mut self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn write_tmp(&mut self, path: &str, fill: Fill<'_>) -> Result<()> {
        let full = self.at(path);
        let open = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&full);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_dir(full.parent().unwrap_or(&self.root))?;
                open()
            }
            outcome => outcome,
        }
        .map_err(|source| Error::io("create", path, source))?;
        let mut eager = Eager { file: &file, num_bytes: 0, num_started: 0, failure: None };
        if let Err(error) = fill(&mut eager) {
            // A format wraps what the disk said; here it is still known.
            return Err(eager.failure.map_or(error, |source| Error::io("write", path, source)));
        }
        // Quotas of network filesystems show here; closing a synced file has nothing left to report.
        file.sync_all().map_err(|source| Error::io("sync", path, source))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        fs::rename(self.at(from), self.at(to)).map_err(|source| Error::io("rename", to, source))
    }

    fn link(&mut self, from: &str, to: &str) -> Result<bool> {
        match fs::hard_link(self.at(from), self.at(to)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(Error::io("link", to, source)),
        }
    }

    fn num_links(&mut self, path: &str) -> Result<Option<u64>> {
        Ok(absent_is_none("stat", path, fs::symlink_metadata(self.at(path)))?.map(|meta| meta.nlink()))
    }

    fn sync_dir(&mut self, dir: &str) -> Result<()> {
        let folder = File::open(self.at(dir)).map_err(|source| Error::io("open", dir, source))?;
        match folder.sync_all() {
            // Some network filesystems have no sync of folders; their renames are synchronous.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            outcome => outcome.map_err(|source| Error::io("sync", dir, source)),
        }
    }

    fn read(&mut self, path: &str) -> Result<Option<Bytes>> {
        let Some(file) = absent_is_none("open", path, File::open(self.at(path)))? else { return Ok(None) };
        let size = file.metadata().map_err(|source| Error::io("stat", path, source))?.len();
        if size >= MIN_MAPPED_BYTES
            && let Ok(map) = Self::map(&file)
        {
            return Ok(Some(Bytes::mapped(map)));
        }
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|source| Error::io("read", path, source))?;
        Ok(Some(bytes.into()))
    }

    fn exists(&mut self, path: &str) -> Result<bool> {
        Ok(absent_is_none("stat", path, fs::symlink_metadata(self.at(path)))?.is_some())
    }

    fn list(&mut self, dir: &str) -> Result<Vec<String>> {
        let Some(entries) = absent_is_none("list", dir, fs::read_dir(self.at(dir)))? else {
            return Ok(Vec::new());
        };
        let name =
            |entry: io::Result<fs::DirEntry>| entry.map(|e| e.file_name().to_string_lossy().into_owned());
        entries.map(name).collect::<io::Result<_>>().map_err(|source| Error::io("list", dir, source))
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        let full = self.at(path);
        let Some(meta) = absent_is_none("stat", path, fs::symlink_metadata(&full))? else { return Ok(()) };
        let outcome = if meta.is_dir() { fs::remove_dir_all(&full) } else { fs::remove_file(&full) };
        absent_is_none("remove", path, outcome).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Commit, Store};
    use super::*;

    #[test]
    fn only_the_first_commit_of_a_name_wins() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FsStore::open(dir.path().join("run")).unwrap();
        assert_eq!(store.commit("rollout/000000/MANIFEST.json", b"a").unwrap(), Commit::Won);
        assert_eq!(store.commit("rollout/000000/MANIFEST.json", b"b").unwrap(), Commit::Lost);
        assert_eq!(&*store.read("rollout/000000/MANIFEST.json").unwrap().unwrap(), b"a");
        assert_eq!(store.list("rollout/000000").unwrap(), ["MANIFEST.json"]);
        let mode = fs::metadata(dir.path().join("run/rollout")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn sealed_files_are_read_back_mapped_and_small() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FsStore::open(dir.path()).unwrap();
        for size in [0_usize, 10, 300_000] {
            let bytes: Vec<u8> = (0..size).map(|i| i as u8).collect();
            store.seal(&format!("a/{size}"), &bytes).unwrap();
            assert_eq!(&*store.read(&format!("a/{size}")).unwrap().unwrap(), &bytes[..]);
        }
        assert!(store.read("a/none").unwrap().is_none());
        assert!(store.list("none").unwrap().is_empty());
        store.remove("a").unwrap();
        assert!(!store.exists("a/10").unwrap());
    }

    #[test]
    fn a_read_only_folder_is_named_with_its_exit_code() {
        let error = FsStore::open("/proc/none/run").unwrap_err();
        assert!(error.to_string().contains("/proc/none"), "{error}");
    }
}
