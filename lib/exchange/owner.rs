//! Incarnations and heartbeats: how an owner learns that it was replaced, and how others learn that it is silent.

use std::collections::BTreeMap;

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

    /// Removes from `dirs` and from the folder of its incarnations what earlier ones left half written.
    pub(crate) fn sweep(&self, store: &mut dyn Store, mut dirs: Vec<String>) -> Result<()> {
        dirs.push(paths::owner(&self.name));
        holder::sweep(store, &self.name, self.incarnation, &dirs)
    }

    /// Errs with [`Error::Fenced`] when a newer incarnation can be seen: called before anything is changed, and at each
    /// beat.
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

/// What an owner says about itself, in the name of an empty file: a hint, moved on at each beat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Incarnation that beats.
    pub incarnation: u64,
    /// Counter; readers time its changes by their own clocks.
    pub beat: u64,
    /// Version whose weights are loaded: it may not be pruned.
    pub version: Option<u64>,
    /// The file, once there is one.
    path: Option<String>,
}

/// The newest beat of each owner that a reader has seen. A listing may miss a name that is just being moved.
pub(crate) type Heartbeats = BTreeMap<String, Heartbeat>;

impl Heartbeat {
    /// The heart of an incarnation, before its first beat.
    pub fn of(incarnation: u64) -> Self {
        Self { incarnation, ..Self::default() }
    }

    /// The next beat. The first one clears away those of earlier incarnations.
    pub fn beat(&mut self, store: &mut dyn Store, owner: &str) -> Result<()> {
        if self.path.is_none() {
            for name in store.list(paths::HEARTBEATS)? {
                let found = paths::parse_heartbeat(&name);
                if found.is_some_and(|(other, earlier, ..)| other == owner && earlier < self.incarnation) {
                    store.remove(&format!("{}/{name}", paths::HEARTBEATS))?;
                }
            }
        }
        let path = paths::heartbeat(owner, self.incarnation, self.beat + 1, self.version);
        store.move_hint(self.path.as_deref(), &path)?;
        self.beat += 1;
        self.path = Some(path);
        Ok(())
    }

    /// Adds to `known` what can be seen of all owners.
    pub(crate) fn read_all(store: &mut dyn Store, known: &mut Heartbeats) -> Result<()> {
        for name in store.list(paths::HEARTBEATS)? {
            let Some((owner, incarnation, beat, version)) = paths::parse_heartbeat(&name) else { continue };
            let newest = known.entry(owner.to_owned()).or_default();
            if (incarnation, beat) > (newest.incarnation, newest.beat) {
                *newest = Self { incarnation, beat, version, path: None };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FsStore;

    #[test]
    fn a_heart_has_one_name_and_those_of_earlier_incarnations_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FsStore::open(dir.path()).unwrap();
        let (mut earlier, mut other) = (Heartbeat::of(1), Heartbeat::of(7));
        earlier.beat(&mut store, "replica.1").unwrap();
        other.beat(&mut store, "replica.11").unwrap();
        let mut heart = Heartbeat::of(2);
        heart.version = Some(5);
        for _ in 0..3 {
            heart.beat(&mut store, "replica.1").unwrap();
        }
        let names = ["replica.1.000002.000003.v000005", "replica.11.000007.000001"];
        assert_eq!(store.list(paths::HEARTBEATS).unwrap(), names);
        // Somebody cleared it away: it comes back.
        store.remove(paths::HEARTBEATS).unwrap();
        heart.beat(&mut store, "replica.1").unwrap();
        assert_eq!(store.list(paths::HEARTBEATS).unwrap(), ["replica.1.000002.000004.v000005"]);
        let mut known = Heartbeats::new();
        Heartbeat::read_all(&mut store, &mut known).unwrap();
        let seen = &known["replica.1"];
        assert_eq!((seen.incarnation, seen.beat, seen.version), (2, 4, Some(5)));
    }
}
