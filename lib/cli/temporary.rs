//! Names under which outputs are written before they get their own, and the end of what killed processes left.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Every temporary name begins with this, so that a listing hides it.
const PREFIX: &str = ".tmp.";

/// `.tmp.<name>.<writer>` beside `target`: what is written there is renamed to `target` when it is complete.
///
/// Leftovers in the same folder whose writers are dead processes of this machine are removed first. Those of other
/// machines stay: nobody here can tell whether their writers live.
pub fn temporary_beside(target: &Path) -> PathBuf {
    let mine = Writer::this_process();
    remove_leftovers(folder_of(target), &mine);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!("{PREFIX}{name}.{}", mine.text()))
}

fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A process as no other on any machine: process numbers repeat after a start of the system and in containers.
#[derive(Debug, PartialEq, Eq)]
struct Writer {
    boot: String,
    pid_namespace: u64,
    pid: u32,
}

impl Writer {
    fn this_process() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.split('-').next().unwrap_or_default().trim().to_owned();
        // The link reads `pid:[4026531836]`.
        let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        Self { boot, pid_namespace: digits.parse().unwrap_or(0), pid: std::process::id() }
    }

    fn text(&self) -> String {
        format!("{}-{}-{}", self.boot, self.pid_namespace, self.pid)
    }

    /// The writer of a temporary name.
    fn of(name: &OsStr) -> Option<Self> {
        let (_, text) = name.to_str()?.strip_prefix(PREFIX)?.rsplit_once('.')?;
        let mut parts = text.split('-');
        let boot = parts.next()?.to_owned();
        let (pid_namespace, pid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Self { boot, pid_namespace, pid })
    }

    /// Whether this is a process of the same system that has ended.
    fn is_dead(&self, mine: &Self) -> bool {
        let is_comparable = self.boot == mine.boot && self.pid_namespace == mine.pid_namespace;
        is_comparable && !Path::new("/proc").join(self.pid.to_string()).exists()
    }
}

/// What cannot be removed stays: it harms nobody, and the output itself will tell about a folder that is not writable.
fn remove_leftovers(folder: &Path, mine: &Writer) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !Writer::of(&entry.file_name()).is_some_and(|writer| writer.is_dead(mine)) {
            continue;
        }
        let path = entry.path();
        if remove(&path).is_ok() {
            tracing::info!("removed {}, which a killed process left", path.display());
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_processes_of_this_system_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mine = Writer::this_process();
        // Above the largest process number of Linux.
        let dead = Writer { pid: 1 << 30, ..Writer::this_process() }.text();
        let foreign = Writer { boot: "00000000".to_owned(), pid: 1 << 30, pid_namespace: 1 }.text();
        let kept = [format!(".tmp.a.{}", mine.text()), format!(".tmp.a.{foreign}"), ".tmp.a.b".to_owned()];
        for name in kept.iter().chain([&format!(".tmp.x.jsonl.{dead}"), &format!("a.{dead}")]) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir_all(folder.path().join(format!(".tmp.w.{dead}/inner"))).unwrap();
        let temporary = temporary_beside(&folder.path().join("b.jsonl"));
        assert_eq!(temporary.file_name().unwrap().to_str().unwrap(), format!(".tmp.b.jsonl.{}", mine.text()));
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        let mut expected = kept.to_vec();
        expected.push(format!("a.{dead}"));
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn name_tells_its_writer() {
        let mine = Writer::this_process();
        let name = temporary_beside(Path::new("/nonexistent/weights/a.b"));
        assert_eq!(Writer::of(name.file_name().unwrap()), Some(mine));
        assert_eq!(temporary_beside(Path::new("x")).parent(), Some(Path::new("")));
    }
}
