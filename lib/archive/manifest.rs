//! The manifest beside an archive: what is in it, and which bytes hold it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub(crate) const FORMAT: &str = "slime-archive";
pub(crate) const VERSION: u32 = 1;

/// One zstd frame of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Where it begins in the archive, in bytes.
    pub offset: u64,
    /// Its size there.
    pub packed_bytes: u32,
    /// The size of what it holds.
    pub num_bytes: u32,
}

/// A packed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name below the run directory, with `/`.
    pub name: String,
    /// Its size in bytes.
    pub num_bytes: u64,
    /// XXH3 (64 bits) of the whole file, 16 hexadecimal digits.
    pub xxh3: String,
    /// The frames that hold it, in order; none of an empty file.
    pub frames: Vec<Frame>,
}

/// A manifest: an archive without one does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `slime-archive`.
    pub format: String,
    /// Version of this layout.
    pub version: u32,
    /// Version of the tool that packed it.
    pub tool_version: String,
    /// Hash of the run's configuration: XXH3 of `run.toml`, 16 hexadecimal digits; empty without one.
    pub config_hash: String,
    /// The archive, beside this file.
    pub file: String,
    /// Its size in bytes.
    pub num_bytes: u64,
    /// What is packed, in file order.
    pub members: Vec<Member>,
}

impl Manifest {
    /// Parses and checks `text`, the content of `path`.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| Error::corrupt(path, error.to_string()))?;
        if (manifest.format.as_str(), manifest.version) != (FORMAT, VERSION) {
            let (format, version) = (&manifest.format, manifest.version);
            let reason = format!("expected {FORMAT} version {VERSION}, got {format} version {version}");
            return Err(Error::corrupt(path, reason));
        }
        if manifest.file.contains('/') {
            let reason = format!("file: expected a name in the same folder, got {}", manifest.file);
            return Err(Error::corrupt(path, reason));
        }
        for member in &manifest.members {
            // Restoring writes under these names.
            let is_inside = !member.name.is_empty()
                && member.name.split('/').all(|part| !matches!(part, "" | "." | ".."));
            let sum: u64 = member.frames.iter().map(|frame| u64::from(frame.num_bytes)).sum();
            if !is_inside || sum != member.num_bytes {
                let reason = format!("member {}: its name or its sizes are impossible", member.name);
                return Err(Error::corrupt(path, reason));
            }
        }
        Ok(manifest)
    }
}

/// A checksum as manifests write it.
pub(crate) fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes))
}
