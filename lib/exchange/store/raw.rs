//! The raw calls a store stands on; each may fail although it was done, as on network filesystems.

use std::io::Write;
use std::ops::Deref;
use std::sync::Arc;

use crate::Result;

/// The content of a closed file: mapped or in memory, cheap to clone.
#[derive(Clone)]
pub struct Bytes(Inner);

#[derive(Clone)]
enum Inner {
    Memory(Arc<[u8]>),
    Mapped(Arc<memmap2::Mmap>),
}

impl Bytes {
    pub(crate) fn mapped(map: memmap2::Mmap) -> Self {
        Self(Inner::Mapped(Arc::new(map)))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Inner::Memory(bytes.into()))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Memory(bytes) => bytes,
            Inner::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

/// Writes the content of a file; called once.
pub type Fill<'a> = &'a mut dyn FnMut(&mut dyn Write) -> Result<()>;

/// The calls. Paths are relative to the run directory.
pub trait RawFiles {
    /// Monotonic milliseconds.
    fn now_ms(&self) -> u64;
    /// Waits before another try.
    fn pause(&mut self, ms: u64);
    /// Writes and syncs a whole new temporary file (its folder is made when missing), replacing a stale one.
    fn write_tmp(&mut self, path: &str, fill: Fill<'_>) -> Result<()>;
    /// Renames within a folder, replacing.
    fn rename(&mut self, from: &str, to: &str) -> Result<()>;
    /// Gives a file a second name; `false` when the name is taken.
    fn link(&mut self, from: &str, to: &str) -> Result<bool>;
    /// Number of names of a file; `None` when it does not exist.
    fn num_links(&mut self, path: &str) -> Result<Option<u64>>;
    /// Syncs a folder.
    fn sync_dir(&mut self, dir: &str) -> Result<()>;
    /// Content of a file.
    fn read(&mut self, path: &str) -> Result<Option<Bytes>>;
    /// Whether a name can be seen.
    fn exists(&mut self, path: &str) -> Result<bool>;
    /// All names in a folder, in any order; reading it refreshes what this reader knows of the folder.
    fn list(&mut self, dir: &str) -> Result<Vec<String>>;
    /// Removes a file or a folder with all it holds; absent is fine.
    fn remove(&mut self, path: &str) -> Result<()>;
}
