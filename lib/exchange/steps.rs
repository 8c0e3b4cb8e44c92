//! Which steps readers look into: the front, and the older steps whose groups are still out.

use std::collections::BTreeSet;

use slime_config::paths;
use slime_record::Manifest;

use crate::segment::from_json;
use crate::{Result, Store};

/// The steps whose folders may hold more than their manifests, in order: for starts only, since a long run has many.
pub(crate) fn open_steps(store: &mut dyn Store) -> Result<Vec<u64>> {
    let hint = store.read(paths::FIRST_STEP)?;
    let hint = hint.and_then(|bytes| String::from_utf8_lossy(&bytes).trim().parse::<u64>().ok());
    // Nothing is wrong with an unreadable hint but the time it costs.
    let first = hint.unwrap_or(0);
    let steps = store.list(paths::ROLLOUT)?;
    Ok(steps.iter().filter_map(|name| paths::parse_number(name)).filter(|step| *step >= first).collect())
}

/// How far the chain of manifests goes, as one reader has seen it. Looking at it costs one listing of the front's
/// folder, which is what readers want to know anyway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Front {
    /// The first step without a manifest.
    pub step: u64,
    /// Older steps of groups that were drawn, are not generated and may be taken by a later step.
    pub outstanding: BTreeSet<u64>,
}

impl Front {
    /// The front behind the newest manifest that can be seen.
    pub fn find(store: &mut dyn Store) -> Result<Self> {
        let steps = store.list(paths::ROLLOUT)?;
        for step in steps.iter().rev().filter_map(|name| paths::parse_number(name)) {
            if let Some(front) = Self::behind(store, step)? {
                return Ok(front);
            }
        }
        Ok(Self::default())
    }

    fn behind(store: &mut dyn Store, step: u64) -> Result<Option<Self>> {
        let path = paths::manifest(step);
        let Some(bytes) = store.read(&path)? else { return Ok(None) };
        let manifest: Manifest = from_json(&path, &bytes)?;
        let outstanding = manifest.outstanding.iter().map(|draw| draw.step).filter(|old| *old <= step);
        Ok(Some(Self { step: step + 1, outstanding: outstanding.collect() }))
    }

    /// Passes the steps that are committed by now. Gives the names in their folders and in that of the front.
    pub fn advance(&mut self, store: &mut dyn Store) -> Result<Vec<(u64, Vec<String>)>> {
        let mut seen = Vec::new();
        loop {
            let names = store.list(&paths::step(self.step))?;
            let is_committed = names.iter().any(|name| name == paths::MANIFEST);
            seen.push((self.step, names));
            let next = if is_committed { Self::behind(store, self.step)? } else { None };
            match next {
                Some(next) => *self = next,
                None => return Ok(seen),
            }
        }
    }
}
