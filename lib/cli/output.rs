//! Where a tool's data goes: stdout, or a file that gets its name when it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{Failure, temporary_beside};

/// An output in progress. A file is written under a temporary name and renamed by [`Output::finish`]; dropped before
/// that, it leaves nothing behind and an earlier file of the name as it was.
pub struct Output {
    name: String,
    bytes: BufWriter<Box<dyn Write + Send>>,
    /// The temporary name and the final one of a file.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// `-` is stdout; a device, a pipe or a socket is written as it is; everything else is a file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(output: &str) -> Result<Self, Failure> {
        if output == "-" {
            return Ok(Self::new("stdout", Box::new(io::stdout()), None));
        }
        let failed = |error: io::Error| Failure::create(output, &error);
        // What a link names is replaced, not the link.
        let path = fs::canonicalize(output).unwrap_or_else(|_| PathBuf::from(output));
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
            Ok(meta) if !meta.is_file() => {
                let device = File::options().write(true).open(&path).map_err(failed)?;
                Ok(Self::new(output, Box::new(device), None))
            }
            _ if path.file_name().is_none() || output.ends_with('/') => {
                Err(failed(io::ErrorKind::IsADirectory.into()))
            }
            _ => {
                let temporary = temporary_beside(&path);
                let file = File::create(&temporary).map_err(failed)?;
                Ok(Self::new(output, Box::new(file), Some((temporary, path))))
            }
        }
    }

    fn new(name: &str, bytes: Box<dyn Write + Send>, rename: Option<(PathBuf, PathBuf)>) -> Self {
        Self { name: name.to_owned(), bytes: BufWriter::new(bytes), rename }
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes what was written durable and gives a file its name.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.complete().map_err(|error| Failure::io(&self.name, &error))
    }

    fn complete(&mut self) -> io::Result<()> {
        self.bytes.flush()?;
        let Some((temporary, path)) = &self.rename else { return Ok(()) };
        File::open(temporary)?.sync_all()?;
        fs::rename(temporary, path)?;
        sync_folder(path)?;
        self.rename = None;
        Ok(())
    }
}

/// Makes a rename durable, where the file system knows that of a folder.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error)
            if !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.bytes.flush()
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output")
            .field("name", &self.name)
            .field("rename", &self.rename)
            .finish_non_exhaustive()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.rename {
            // The error that led here is already on its way; the next output in this folder removes what stays.
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_gets_its_name_when_complete_and_an_earlier_one_stays_until_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, "old").unwrap();
        let name = path.to_str().unwrap();
        let mut given_up = Output::create(name).unwrap();
        given_up.write_all(b"half").unwrap();
        given_up.flush().unwrap();
        drop(given_up);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let mut output = Output::create(name).unwrap();
        output.write_all(b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn devices_are_written_and_never_replaced() {
        use std::os::unix::fs::FileTypeExt;
        let mut output = Output::create("/dev/null").unwrap();
        output.write_all(b"x").unwrap();
        output.finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let mut full = Output::create("/dev/full").unwrap();
        full.write_all(b"x").unwrap();
        assert_eq!(full.finish().unwrap_err().code, crate::exit::IO);
    }

    #[test]
    fn link_keeps_pointing_at_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut output = Output::create(link.to_str().unwrap()).unwrap();
        output.write_all(b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn folders_and_missing_folders_cannot_be_created() {
        let folder = tempfile::tempdir().unwrap();
        let failure = Output::create(folder.path().to_str().unwrap()).unwrap_err();
        assert_eq!(failure.code, crate::exit::CANNOT_CREATE);
        assert!(failure.message.starts_with("cannot create /"), "{}", failure.message);
        let absent = folder.path().join("no/where");
        assert_eq!(Output::create(absent.to_str().unwrap()).unwrap_err().code, crate::exit::CANNOT_CREATE);
    }
}
