//! Files that grow: opened, appended to in one piece and closed, so that readers on other nodes see whole lines.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::{Error, Result};

/// Appends `bytes`; folder and file are made when they are missing.
pub(crate) fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let open = || OpenOptions::new().create(true).append(true).open(path);
    let file = open().or_else(|error| match path.parent() {
        Some(folder) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(folder).and_then(|()| open())
        }
        _ => Err(error),
    });
    file.and_then(|mut file| file.write_all(bytes)).map_err(failed)
}
