//! Rows of any fields as JSON lines: to stdout, or to a file that gets its name when it is complete.

use std::fs::{self, File};
use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use slime_cli::Failure;

/// Where bytes go. A file is written as `.NAME.tmp`, synced and renamed by [`Output::finish`].
pub enum Output {
    Stdout(BufWriter<std::io::Stdout>),
    File { file: BufWriter<File>, temporary: PathBuf, path: PathBuf },
}

impl Output {
    /// `-` is stdout.
    pub fn create(output: &str) -> Result<Self, Failure> {
        if output == "-" {
            return Ok(Self::Stdout(BufWriter::new(stdout())));
        }
        let path = Path::new(output);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.tmp"));
        let file = File::create(&temporary).map_err(|error| Failure::create(output, &error))?;
        Ok(Self::File { file: BufWriter::new(file), temporary, path: path.to_owned() })
    }

    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            Self::Stdout(_) => "stdout".to_owned(),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// Makes what was written durable and visible.
    pub fn finish(self) -> Result<(), Failure> {
        let name = self.name();
        let done = match self {
            Self::Stdout(mut stdout) => stdout.flush(),
            Self::File { file, temporary, path } => file
                .into_inner()
                .map_err(std::io::IntoInnerError::into_error)
                .and_then(|file| file.sync_all())
                .and_then(|()| fs::rename(temporary, path)),
        };
        done.map_err(|error| Failure::io(name, &error))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::File { file, .. } => file.flush(),
        }
    }
}

/// Writes JSON objects, one a line.
pub struct RowWriter {
    output: Output,
}

impl RowWriter {
    /// `-` is stdout.
    pub fn create(output: &str) -> Result<Self, Failure> {
        Ok(Self { output: Output::create(output)? })
    }

    /// One line, flushed so that a reader sees it now.
    pub fn write(&mut self, fields: &Map<String, Value>) -> Result<(), Failure> {
        let line = serde_json::to_string(fields).map_err(Failure::data)?;
        writeln!(self.output, "{line}")
            .and_then(|()| self.output.flush())
            .map_err(|error| Failure::io(self.output.name(), &error))
    }

    /// See [`Output::finish`].
    pub fn finish(self) -> Result<(), Failure> {
        self.output.finish()
    }
}
