//! `[sync]`: the way of the weights from the trainer to the engines.

use serde::{Deserialize, Serialize};

use crate::check::at_least_one;
use crate::error::{Error, Result};

/// How a version comes from the trainer to the engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncTransport {
    /// A weight directory below the run directory.
    #[default]
    Disk,
    /// The values that changed since the version before, below the run directory; whole versions at intervals.
    Delta,
    /// A weight directory in the memory of the node, which engines map.
    Shm,
}

impl SyncTransport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Disk, Self::Delta, Self::Shm];

    /// The name in configurations and publications.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Delta => "delta",
            Self::Shm => "shm",
        }
    }

    /// Reads a name back.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.as_str() == name)
    }
}

/// `[sync]`: how weights travel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sync {
    /// `disk`, `delta` or `shm`.
    pub transport: SyncTransport,
    /// At least every so many publications a whole version goes out (`delta`): the longest chain that an engine which
    /// starts has to follow.
    pub full_interval: u64,
    /// A folder in the memory of the node (tmpfs): the versions of `shm`, and what engines build versions of `delta` in.
    pub memory_dir: String,
}

impl Default for Sync {
    fn default() -> Self {
        Self { transport: SyncTransport::Disk, full_interval: 20, memory_dir: "/dev/shm".to_owned() }
    }
}

impl Sync {
    pub(crate) fn check(&self) -> Result<()> {
        at_least_one("sync.full_interval", self.full_interval)?;
        if !self.memory_dir.starts_with('/') {
            return Err(Error::value("sync.memory_dir", "an absolute path", &self.memory_dir));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn transports_have_names_and_values_are_checked() {
        for transport in SyncTransport::ALL {
            let text = format!("[sync]\ntransport = \"{}\"\n", transport.as_str());
            assert_eq!(parse(&text, "run.toml", &[]).unwrap().sync.transport, transport);
            assert_eq!(SyncTransport::from_name(transport.as_str()), Some(transport));
        }
        let refusal = |text: &str| parse(text, "run.toml", &[]).unwrap_err().to_string();
        assert!(refusal("[sync]\ntransport = \"dsik\"\n").starts_with("run.toml:2: "));
        let text = refusal("[sync]\nfull_interval = 0\n");
        assert!(text.starts_with("sync.full_interval: expected at least 1"), "{text}");
        let text = refusal("[sync]\nmemory_dir = \"shm\"\n");
        assert!(text.starts_with("sync.memory_dir: expected an absolute path"), "{text}");
    }

    #[test]
    fn what_other_transports_do_not_read_is_told() {
        for (text, key) in [
            ("[sync]\nfull_interval = 3\n", "sync.full_interval"),
            ("[sync]\ntransport = \"shm\"\nfull_interval = 3\n", "sync.full_interval"),
            ("[sync]\nmemory_dir = \"/mnt\"\n", "sync.memory_dir"),
        ] {
            let warnings = parse(text, "run.toml", &[]).unwrap().warnings();
            assert_eq!(warnings.len(), 1, "{text}: {warnings:?}");
            assert!(warnings[0].starts_with(&format!("{key} has no effect")), "{warnings:?}");
        }
        let text = "[sync]\ntransport = \"delta\"\nfull_interval = 3\nmemory_dir = \"/mnt\"\n";
        assert!(parse(text, "run.toml", &[]).unwrap().warnings().is_empty());
    }
}
