//! Bringing packed files back to their places; the archives stay, since files are only ever added to a run by name.

use std::fs;
use std::io;
use std::path::Path;

use crate::pack::write_whole;
use crate::{Error, Packed, Result};

/// What was brought back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Files that were written.
    pub num_files: usize,
    /// Their size.
    pub num_bytes: u64,
    /// Files that were there already, with the same bytes.
    pub num_there: usize,
}

/// Restores the packed files `names` (or whole folders, such as `rollout/000003`); all of them when there are none.
///
/// # Errors
/// A name that nothing packed has, a file of other bytes in a place, broken archives, a disk that refuses.
pub fn restore(run: &Path, names: &[String]) -> Result<Restored> {
    let packed = Packed::open(run)?;
    let fits = |name: &str, wanted: &str| {
        let wanted = wanted.trim_end_matches('/');
        name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some(wanted) = names.iter().find(|wanted| !packed.list().any(|member| fits(&member.name, wanted)))
    {
        return Err(Error::NoMember { run: run.to_owned(), name: wanted.clone() });
    }
    let mut restored = Restored::default();
    for member in packed.list() {
        if !names.is_empty() && !names.iter().any(|wanted| fits(&member.name, wanted)) {
            continue;
        }
        let path = run.join(&member.name);
        let bytes = packed.read(&member.name)?;
        match fs::read(&path) {
            Ok(there) if there == bytes => restored.num_there += 1,
            Ok(_) => {
                let archive = packed.archive_of(&member.name).unwrap_or_default().to_owned();
                return Err(Error::Differs { path, archive });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
                }
                write_whole(&path, &bytes)?;
                restored.num_files += 1;
                restored.num_bytes += member.num_bytes;
            }
            Err(error) => return Err(Error::io("read", &path)(error)),
        }
    }
    Ok(restored)
}
