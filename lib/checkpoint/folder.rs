//! Checkpoints as folders of one root: which are complete, which may go.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use slime_config::paths::COMPLETE;

use crate::{Error, Result};

/// The complete checkpoints below `root`, oldest first by name (`000040.e003`: step, then epoch). No root, none.
pub fn checkpoints(root: &Path) -> Result<Vec<PathBuf>> {
    Ok(folders(root)?.into_iter().filter(|path| path.join(COMPLETE).exists()).collect())
}

/// The last of [`checkpoints`].
pub fn newest(root: &Path) -> Result<Option<PathBuf>> {
    Ok(checkpoints(root)?.pop())
}

/// Removes all complete checkpoints but the newest `keep` (at least one stays), and incomplete ones older than the
/// newest complete one. COMPLETE goes first, so a removal cut off leaves no checkpoint that looks whole. Returns what
/// was removed.
pub fn prune(root: &Path, keep: usize) -> Result<Vec<PathBuf>> {
    let complete = checkpoints(root)?;
    let Some(newest) = complete.last() else { return Ok(Vec::new()) };
    let kept = &complete[complete.len().saturating_sub(keep.max(1))..];
    let mut removed = Vec::new();
    for path in folders(root)? {
        if path >= *newest || kept.contains(&path) {
            continue;
        }
        let marker = path.join(COMPLETE);
        if marker.exists() {
            fs::remove_file(&marker).map_err(Error::io("remove", &marker))?;
            sync_folder(&path)?;
        }
        fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
        removed.push(path);
    }
    Ok(removed)
}

fn folders(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(root) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("list", root))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("list", root))?.path();
        let is_hidden = path.file_name().and_then(OsStr::to_str).is_none_or(|name| name.starts_with('.'));
        if !is_hidden && path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Makes renames and new names in `dir` durable.
pub(crate) fn sync_folder(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", dir))
}

/// Writes a small file whole or not at all: temporary name, sync, rename, sync of the folder.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or("file");
    let temporary = folder.join(format!(".tmp.{name}"));
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error of the write says what happened; a file that stays has a temporary name.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(Error::io("write", path))?;
    sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(names: &[(&str, bool)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, is_complete) in names {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("rank_00000.h5"), "x").unwrap();
            if *is_complete {
                fs::write(root.path().join(name).join(COMPLETE), "x").unwrap();
            }
        }
        root
    }

    fn names(paths: Vec<PathBuf>) -> Vec<String> {
        paths.into_iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_string()).collect()
    }

    #[test]
    fn newest_is_by_step_then_epoch_and_complete() {
        let root = root(&[
            ("000010.e001", true),
            ("000020.e001", true),
            ("000020.e002", true),
            ("000030.e002", false),
        ]);
        assert_eq!(newest(root.path()).unwrap().unwrap(), root.path().join("000020.e002"));
        assert_eq!(newest(&root.path().join("none")).unwrap(), None);
    }

    #[test]
    fn prune_keeps_the_newest_and_what_is_being_written() {
        let root = root(&[
            ("000010.e001", true),
            ("000015.e001", false),
            ("000020.e001", true),
            ("000030.e001", true),
            ("000040.e001", false),
        ]);
        assert_eq!(names(prune(root.path(), 2).unwrap()), ["000010.e001", "000015.e001"]);
        assert_eq!(names(prune(root.path(), 0).unwrap()), ["000020.e001"], "one always stays");
        assert_eq!(names(folders(root.path()).unwrap()), ["000030.e001", "000040.e001"]);
    }
}
