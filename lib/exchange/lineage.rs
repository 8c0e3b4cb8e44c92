//! The trainer's line of versions: which published versions belong to the living epoch and which are void.

use std::collections::{BTreeMap, BTreeSet};

use slime_record::Epoch;

use crate::{Error, Result, Store};
use slime_config::paths::{self, Physical};

/// The newest version of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    /// The version, where a reader finds it.
    pub physical: Physical,
    /// Epoch on whose line it was found.
    pub epoch: u64,
}

/// What one reader knows of epochs and publications; both only grow.
#[derive(Debug, Clone, Default)]
pub struct Lineage {
    epochs: BTreeMap<u64, Epoch>,
    published: BTreeSet<Physical>,
}

impl Lineage {
    /// Reads what is new. Pruned publications are forgotten.
    pub fn refresh(&mut self, store: &mut dyn Store) -> Result<()> {
        self.refresh_epochs(store)?;
        self.list_versions(store)
    }

    /// Reads which versions there are, and the epochs only for one that is of an epoch not known.
    pub fn refresh_versions(&mut self, store: &mut dyn Store) -> Result<()> {
        self.list_versions(store)?;
        if self.published.iter().any(|place| !self.epochs.contains_key(&place.epoch)) {
            self.refresh_epochs(store)?;
        }
        Ok(())
    }

    /// Reads which epochs there are.
    pub fn refresh_epochs(&mut self, store: &mut dyn Store) -> Result<()> {
        for name in store.list(paths::EPOCHS)? {
            let Some(number) = paths::parse_number(&name) else { continue };
            if !self.epochs.contains_key(&number)
                && let Some(bytes) = store.read(&paths::epoch(number))?
            {
                let epoch: Epoch = crate::segment::from_json(&paths::epoch(number), &bytes)?;
                self.epochs.insert(number, epoch);
            }
        }
        Ok(())
    }

    fn list_versions(&mut self, store: &mut dyn Store) -> Result<()> {
        let published = store.list(paths::VERSIONS)?;
        self.published = published.iter().filter_map(|name| paths::parse_physical(name)).collect();
        Ok(())
    }

    /// The living epoch as far as this reader knows.
    pub fn living(&self) -> Option<u64> {
        self.epochs.keys().next_back().copied()
    }

    /// The epoch whose training made `version` on the line of `epoch`; 0 for the import, which is on every line.
    pub fn origin(&self, version: u64, epoch: u64) -> Option<u64> {
        if version == 0 {
            return Some(0);
        }
        let record = self.epochs.get(&epoch)?;
        if version > record.checkpoint { Some(epoch) } else { self.origin(version, record.parent?) }
    }

    /// Whether `version` as the line of `epoch` means it is the same weights on the living line.
    pub fn is_valid(&self, version: u64, epoch: u64) -> bool {
        let living = self.living().and_then(|living| self.origin(version, living));
        living.is_some() && living == self.origin(version, epoch)
    }

    /// Where `version` of the living line is published: the newest place of several.
    pub fn locate(&self, version: u64) -> Option<Physical> {
        let places = Physical { version, epoch: 0 }..=Physical { version, epoch: self.living()? };
        self.published.range(places).rev().find(|place| self.is_on_line(**place)).copied()
    }

    /// The newest published version of the living line.
    pub fn newest(&self) -> Option<Newest> {
        let epoch = self.living()?;
        let physical = self.published.iter().rev().find(|place| self.is_on_line(**place)).copied()?;
        Some(Newest { physical, epoch })
    }

    /// All publications a reader may see.
    pub fn published(&self) -> impl Iterator<Item = Physical> + '_ {
        self.published.iter().copied()
    }

    /// Whether a physical version, as its own epoch published it, is the living line's version of that number.
    pub fn is_on_line(&self, place: Physical) -> bool {
        self.is_valid(place.version, place.epoch)
    }

    /// Complete checkpoints of the line, oldest first.
    pub fn checkpoints(&self, store: &mut dyn Store) -> Result<Vec<Physical>> {
        let mut found = Vec::new();
        for name in store.list(paths::CHECKPOINTS)? {
            let Some(place) = paths::parse_physical(&name) else { continue };
            if self.is_on_line(place) && store.exists(&paths::complete(place))? {
                found.push(place);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The record of an epoch, where known.
    pub fn epoch(&self, epoch: u64) -> Option<&Epoch> {
        self.epochs.get(&epoch)
    }

    pub(crate) fn insert(&mut self, epoch: Epoch) -> Result<()> {
        if epoch.parent.is_some_and(|parent| parent >= epoch.epoch) {
            return Err(Error::Broken {
                path: paths::epoch(epoch.epoch),
                problem: "its parent is younger".into(),
            });
        }
        self.epochs.insert(epoch.epoch, epoch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_versions_of_older_epochs_are_void() {
        let mut line = Lineage::default();
        line.insert(Epoch { epoch: 1, parent: None, checkpoint: 0, holder: String::new() }).unwrap();
        line.insert(Epoch { epoch: 2, parent: Some(1), checkpoint: 4, holder: String::new() }).unwrap();
        line.insert(Epoch { epoch: 3, parent: Some(1), checkpoint: 2, holder: String::new() }).unwrap();
        let at = |version, epoch| line.is_on_line(Physical { version, epoch });
        assert!(at(0, 1) && at(2, 1) && at(2, 3) && at(3, 3));
        assert!(!at(3, 1) && !at(4, 2) && !at(5, 2));
        assert_eq!(line.origin(2, 2), Some(1));
    }
}
