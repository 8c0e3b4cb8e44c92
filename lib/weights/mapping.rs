//! Weight files in memory, mapped read-only.
#![expect(unsafe_code, reason = "maps committed weight files")]

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Advice, Mmap};

use crate::{Error, Result};

/// The bytes `range` of a mapped file, brought into memory now: a disk that fails or a file that another program cut
/// short is an error here, where a look at a missing page would end the process (SIGBUS).
pub(crate) fn mapped<'a>(path: &Path, map: &'a Mmap, range: Range<usize>) -> Result<&'a [u8]> {
    match map.advise_range(Advice::PopulateRead, range.start, range.len()) {
        // Kernels before 5.14 do not know the advice.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            let got = fs::metadata(path).map_err(Error::read(path))?.len();
            if got < range.end as u64 {
                let (what, expected) = ("mapped when it was opened".to_owned(), range.end as u64);
                return Err(Error::Truncated { path: path.to_owned(), what, expected, got });
            }
            Err(Error::read(path)(error))
        }
        _ => Ok(&map[range]),
    }
}

/// Opens a file and maps the whole of it read-only.
pub(crate) fn map_file(path: &Path) -> Result<(File, Mmap)> {
    let file = File::open(path).map_err(Error::read(path))?;
    if file.metadata().map_err(Error::read(path))?.is_dir() {
        return Err(Error::read(path)(io::ErrorKind::IsADirectory.into()));
    }
    // SAFETY: weight files are committed under their name once and never change afterwards, and the map is read-only;
    // every length was checked against the map, and `mapped` populates what is read.
    let map = unsafe { Mmap::map(&file) }.map_err(Error::read(path))?;
    Ok((file, map))
}
