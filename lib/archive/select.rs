//! Which files of steps and attempts can be packed. Whether a step is still needed is the caller's to know.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use slime_config::paths;

use crate::{Error, Result};

/// Files to be packed into one archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The archive's name without its extension, such as `000000-000011`.
    pub stem: String,
    /// Names below the run directory.
    pub names: BTreeSet<String>,
}

/// The segments, assignments and columns of a step. Its manifest is none of them: it stays, so that a late builder's
/// commit loses there as everywhere.
///
/// # Errors
/// A folder that cannot be listed.
pub fn step_files(run: &Path, step: u64) -> Result<Vec<String>> {
    let mut found = files_below(run, &paths::step(step))?;
    let manifest = paths::manifest(step);
    found.retain(|name| *name != manifest);
    for column in names(&run.join(paths::COLUMNS))? {
        found.extend(files_below(run, &paths::column(&column, step))?);
    }
    Ok(found)
}

/// The logs of attempts that have ended: those that say how, and all but the newest.
///
/// # Errors
/// A folder that cannot be listed.
pub fn ended_logs(run: &Path) -> Result<Vec<String>> {
    let mut attempts: Vec<u32> = names(run)?.iter().filter_map(|name| paths::parse_attempt(name)).collect();
    attempts.sort_unstable();
    let newest = attempts.last().copied();
    let run_dir = paths::RunDir::new(run);
    let has_ended = |attempt: u32| {
        Some(attempt) != newest
            || fs::read_to_string(run_dir.outcome(attempt)).is_ok_and(|word| !word.trim().is_empty())
    };
    let mut found = Vec::new();
    for attempt in attempts.into_iter().filter(|attempt| has_ended(*attempt)) {
        found.extend(files_below(run, &format!("attempt-{attempt}/log"))?);
    }
    Ok(found)
}

/// All files below a folder, by their names in the run; half-written ones are left out, and links followed by nobody.
fn files_below(run: &Path, folder: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in names(&run.join(folder))? {
        let path = format!("{folder}/{name}");
        let full = run.join(&path);
        match fs::symlink_metadata(&full) {
            // Pruned since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(Error::io("look at", &full)(error)),
            Ok(metadata) if metadata.is_dir() => found.extend(files_below(run, &path)?),
            Ok(metadata) if metadata.is_file() => found.push(path),
            Ok(_) => (),
        }
    }
    Ok(found)
}

/// The names in a folder that are not hidden; none without a folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(Error::io("list", folder))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io("list", folder))?.file_name();
        found.extend(name.to_str().filter(|name| !name.starts_with('.')).map(str::to_owned));
    }
    found.sort();
    Ok(found)
}
