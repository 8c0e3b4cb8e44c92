//! How much more a folder, and the memory behind it, can hold.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{statfs, statvfs};

use crate::{Error, Result};

/// What `statfs` says of tmpfs (linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Refuses a folder that is not in memory.
///
/// # Errors
/// It is on another kind of file system, or not there.
pub fn check_memory(dir: &Path) -> Result<()> {
    let found = statfs(dir).map_err(|error| read_error(dir, error))?;
    if found.f_type == TMPFS_MAGIC {
        return Ok(());
    }
    Err(Error::NotMemory { path: dir.to_owned(), got: found.f_type })
}

/// Refuses to begin what has no room: `num_bytes` more in `dir`, and in memory where it is there.
///
/// # Errors
/// There is less room.
pub fn check(dir: &Path, num_bytes: u64) -> Result<()> {
    let found = statvfs(dir).map_err(|error| read_error(dir, error))?;
    let mut free = found.f_bavail * found.f_frsize;
    if statfs(dir).is_ok_and(|found| found.f_type == TMPFS_MAGIC) {
        free = free.min(available_memory().unwrap_or(u64::MAX));
    }
    if num_bytes <= free {
        return Ok(());
    }
    Err(Error::NoRoom { path: dir.to_owned(), expected: num_bytes, got: free })
}

/// Bytes of the files in a folder.
///
/// # Errors
/// It cannot be read.
pub fn num_bytes_of(dir: &Path) -> Result<u64> {
    let refused = |source| Error::Read { path: dir.to_owned(), source };
    let mut num_bytes = 0;
    for entry in fs::read_dir(dir).map_err(refused)? {
        num_bytes += entry.and_then(|entry| entry.metadata()).map_err(refused)?.len();
    }
    Ok(num_bytes)
}

/// Bytes that programs can still take, as the kernel estimates them.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn read_error(dir: &Path, error: rustix::io::Errno) -> Error {
    Error::Read { path: dir.to_owned(), source: io::Error::from(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_has_no_room() {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), 1).unwrap();
        let error = check(dir.path(), u64::MAX).unwrap_err();
        assert_eq!(error.exit_code(), 74);
        assert!(error.to_string().contains("expected room for 18446744073709551615 bytes, got"), "{error}");
    }

    #[test]
    fn folder_that_is_not_in_memory_is_refused() {
        let error = check_memory(Path::new("/proc")).unwrap_err();
        assert_eq!(error.exit_code(), 78);
        assert!(error.to_string().starts_with("sync.memory_dir /proc: expected a tmpfs"), "{error}");
        assert!(available_memory().unwrap() > 0);
    }
}
