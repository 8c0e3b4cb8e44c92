//! Incarnations and heartbeats: how an owner learns that it was replaced, and how others learn that it is silent.

use serde::{Deserialize, Serialize};

use crate::holder;
use crate::{Commit, Error, Result, Store};
use slime_config::paths;

/// A claimed incarnation of a builder, replica or reward worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// `<tool>.<index>`
    pub name: String,
    /// Grows by at least one at each start.
    pub incarnation: u64,
    #[cfg(test)]
    pub(crate) fault: crate::simulator::Fault,
}

impl Owner {
    /// Claims the next incarnation of `name` for this process.
    pub fn claim(store: &mut dyn Store, name: &str) -> Result<Self> {
        let note = store.writer().to_owned();
        let dir = paths::owner(name);
        let mut incarnation = newest(store, &dir)? + 1;
        while store.commit(&paths::incarnation(name, incarnation), note.as_bytes())? == Commit::Lost {
            incarnation += 1;
        }
        Ok(Self {
            name: name.to_owned(),
            incarnation,
            #[cfg(test)]
            fault: crate::simulator::Fault::None,
        })
    }

    /// Removes from `dirs`, where this owner alone writes, and from those of all owners what its earlier incarnations
    /// left half written.
    pub(crate) fn sweep(&self, store: &mut dyn Store, mut dirs: Vec<String>) -> Result<()> {
        dirs.extend([paths::owner(&self.name), paths::HEARTBEATS.to_owned()]);
        holder::sweep(store, &self.name, self.incarnation, &dirs)
    }

    /// Errs with [`Error::Fenced`] when a newer incarnation can be seen.
    pub fn check(&self, store: &mut dyn Store) -> Result<()> {
        #[cfg(test)]
        if self.fault == crate::simulator::Fault::SkipFencing {
            return Ok(());
        }
        let newer = newest(store, &paths::owner(&self.name))?;
        if newer > self.incarnation {
            return Err(Error::Fenced { owner: self.name.clone(), mine: self.incarnation, newer });
        }
        Ok(())
    }
}

fn newest(store: &mut dyn Store, dir: &str) -> Result<u64> {
    Ok(store.list(dir)?.iter().filter_map(|name| paths::parse_number(name)).max().unwrap_or(0))
}

/// What an owner says about itself; a hint, replaced by rename.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Incarnation that beats.
    pub incarnation: u64,
    /// Counter; readers time its changes by their own clocks.
    pub beat: u64,
    /// Version whose weights are loaded: it may not be pruned.
    #[serde(default)]
    pub version: Option<u64>,
}

impl Heartbeat {
    /// Writes the next beat.
    pub fn beat(&mut self, store: &mut dyn Store, owner: &str) -> Result<()> {
        self.beat += 1;
        store.hint(&paths::heartbeat(owner), &crate::segment::to_json(self))
    }

    /// Reads another owner's beat; an unreadable hint counts as none.
    pub fn read(store: &mut dyn Store, owner: &str) -> Result<Option<Self>> {
        let bytes = store.read(&paths::heartbeat(owner))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}
