//! The store: immutable files sealed under exclusive names, over raw calls that may lie.

mod fs;
mod raw;
mod sealed;

pub use fs::{FsFiles, FsStore};
pub use raw::{Bytes, Fill, RawFiles};
pub(crate) use sealed::verify;
pub use sealed::{Commit, SealedStore};

use crate::Result;

/// What an owner may do to the run directory; all paths are relative to it, with `/`.
pub trait Store {
    /// This process's monotonic clock in milliseconds; clocks of different processes are never compared.
    fn now_ms(&self) -> u64;

    /// Whose temporary names these are: the text of this process, which no other living one has.
    fn writer(&self) -> &str;

    /// Removes from a folder the temporary files of other writers.
    fn sweep(&mut self, dir: &str, writers: &[String]) -> Result<()>;

    /// Writes a file under a name that only this owner uses; synced, then renamed. Done twice with the same bytes
    /// it is done once. A full disk or an error leaves nothing under the name.
    fn seal(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.seal_with(path, &mut sealed::all_of(bytes, path))
    }

    /// The same with content that is made while it is written.
    fn seal_with(&mut self, path: &str, fill: Fill<'_>) -> Result<()>;

    /// Creates a name exclusively with its whole content; on an error the link count decides.
    fn commit(&mut self, path: &str, bytes: &[u8]) -> Result<Commit>;

    /// Replaces a small file that is a hint, never truth.
    fn hint(&mut self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Makes the empty file `to`, a hint that its name tells, out of `from`, its writer's former one, with one call where
    /// that is still there.
    fn move_hint(&mut self, from: Option<&str>, to: &str) -> Result<()>;

    /// Reads a closed file, mapped where possible. `None`: the name does not exist, or not yet for this reader.
    fn read(&mut self, path: &str) -> Result<Option<Bytes>>;

    /// Whether a name can be seen, without reading the file.
    fn exists(&mut self, path: &str) -> Result<bool>;

    /// Names in a folder, sorted, without temporary ones; empty when there is no folder.
    fn list(&mut self, dir: &str) -> Result<Vec<String>>;

    /// Removes a file or a whole folder; absent is fine.
    fn remove(&mut self, path: &str) -> Result<()>;

    /// Notes beside a broken file what is wrong with it, so readers and people skip it knowingly.
    fn quarantine(&mut self, path: &str, problem: &str) -> Result<()>;
}
