//! Pruning: removes what no checkpoint that may still be started from, and no reader, names any more.

use std::collections::BTreeSet;

use slime_record::Publication;

use super::Trainer;
use crate::segment::from_json;
use crate::{Heartbeat, Physical, Result, Store};
use slime_config::paths;

/// The version whose changes a publication tells.
pub(super) fn base_of(publication: &Publication) -> Option<Physical> {
    publication.base.map(|base| Physical { version: base.version, epoch: base.epoch })
}

impl Trainer {
    /// Removes checkpoints beyond those kept, and versions and steps older than all of them need. Of a step its
    /// manifest stays, so a late builder's commit loses there as everywhere.
    ///
    /// A checkpoint counts only once its completion has been seen here for `visibility_ms`, twice the longest time a
    /// name may hide. A successor that chose an older one looked again after it had made its epoch, and still did not
    /// see the completion: so its epoch is older than the first half of that time, and visible here by the end of the
    /// second. The clock is read before the epochs, so this holds for a trainer that stood still in between, too: it
    /// sees the successor's epoch and ends before it removes anything.
    pub(super) fn prune(&mut self, store: &mut dyn Store) -> Result<()> {
        let now_ms = store.now_ms();
        let complete = self.lineage.checkpoints(store)?;
        self.completed.retain(|(place, _)| complete.contains(place));
        for place in complete {
            if self.completed.iter().all(|(known, _)| *known != place) {
                self.completed.push((place, now_ms));
            }
        }
        self.completed.sort_unstable();
        let visible = |(_, since_ms): &(Physical, u64)| now_ms >= since_ms + self.config.visibility_ms;
        let settled: Vec<Physical> =
            self.completed.iter().filter(|entry| visible(entry)).map(|(place, _)| *place).collect();
        let num_dropped = settled.len().saturating_sub(self.config.keep_checkpoints.max(1));
        if num_dropped == 0 {
            return Ok(());
        }
        self.check_fence(store)?;
        self.lineage.refresh(store)?;
        let oldest = settled[num_dropped].version;
        let Some(oldest_step) = self.oldest_step_from(store, oldest)? else { return Ok(()) };
        for place in &settled[..num_dropped] {
            // Without its mark a half-removed checkpoint is none.
            store.remove(&paths::complete(*place))?;
            store.remove(&paths::checkpoint(*place))?;
        }
        self.prune_versions(store, oldest)?;
        if oldest_step > self.first_step {
            prune_steps(store, self.first_step, oldest_step)?;
            store.hint(paths::FIRST_STEP, oldest_step.to_string().as_bytes())?;
            self.first_step = oldest_step;
        }
        Ok(())
    }

    /// The oldest step that a manifest at or after `step` names; none while one cannot be read.
    fn oldest_step_from(&self, store: &mut dyn Store, step: u64) -> Result<Option<u64>> {
        let mut oldest = step;
        // The line's newest state also lives in the manifest before: what it carries is trained later.
        for step in step.saturating_sub(1)..self.version {
            let found = if let Some(found) = self.oldest_steps.get(&step) {
                *found
            } else {
                let path = paths::manifest(step);
                let Some(bytes) = store.read(&path)? else { return Ok(None) };
                from_json::<slime_record::Manifest>(&path, &bytes)?.oldest_step()
            };
            oldest = oldest.min(found);
        }
        Ok(Some(oldest))
    }

    /// The oldest version that groups of the steps from `step` on are generated with.
    fn oldest_version_from(&self, step: u64) -> u64 {
        let interval = self.config.publish_interval;
        step.saturating_sub(self.config.max_staleness).div_ceil(interval) * interval
    }

    /// Whether the weights of a version are kept for ever.
    pub(super) fn is_kept(&self, version: u64) -> bool {
        let every = self.config.keep_weights_every;
        every > 0 && version > 0 && version.is_multiple_of(every)
    }

    /// Published versions that a reader may ask for before the next one is published: what the steps to come are generated
    /// with, what waits for its evaluation, and the newest.
    pub(super) fn readable(&mut self, store: &mut dyn Store) -> Result<Vec<Physical>> {
        let (mut readable, _) = self.wanted(store)?;
        let newest = self.lineage.newest().map(|newest| newest.physical);
        readable.extend(newest.filter(|newest| !readable.contains(newest)));
        Ok(readable)
    }

    /// Published versions that a run which starts from a checkpoint of this one may ask for. It publishes this one anew, but
    /// an evaluation that is due is of the place that was published first.
    pub(super) fn needed(&mut self, store: &mut dyn Store) -> Result<Vec<Physical>> {
        let (mut needed, is_evaluation_due) = self.wanted(store)?;
        needed.retain(|place| place.version < self.version || is_evaluation_due);
        Ok(needed)
    }

    /// Versions of the line from the oldest one on that steps to come or evaluations want, and whether the latter do.
    fn wanted(&mut self, store: &mut dyn Store) -> Result<(Vec<Physical>, bool)> {
        self.lineage.refresh(store)?;
        let due = self.evaluations.due(store, &self.lineage)?;
        let oldest = self.oldest_version_from(self.version);
        let oldest = oldest.min(due.map_or(oldest, |place| place.version));
        let wanted = self.lineage.published().filter(|place| place.version >= oldest);
        Ok((wanted.filter(|place| self.lineage.is_on_line(*place)).collect(), due.is_some()))
    }

    fn prune_versions(&mut self, store: &mut dyn Store, checkpoint: u64) -> Result<()> {
        let mut oldest = self.oldest_version_from(checkpoint);
        Heartbeat::read_all(store, &mut self.held)?;
        for replica in 0..self.config.num_replicas {
            let held = self.held.get(&paths::replica(replica)).and_then(|beat| beat.version);
            oldest = oldest.min(held.unwrap_or(oldest));
        }
        let due = self.evaluations.due(store, &self.lineage)?;
        oldest = oldest.min(due.map_or(oldest, |place| place.version));
        let (kept, mut old): (Vec<_>, Vec<_>) = self
            .lineage
            .published()
            .partition(|place| place.version >= oldest || self.is_kept(place.version));
        let Some(bases) = self.bases_of(store, kept)? else { return Ok(()) };
        old.retain(|place| !bases.contains(place));
        for place in old {
            store.remove(&paths::version(place))?;
            store.remove(&paths::weights(place))?;
            self.bases.remove(&place);
        }
        Ok(())
    }

    /// All versions that `kept` tell the changes of, down to whole ones; none while a publication cannot be read.
    fn bases_of(&mut self, store: &mut dyn Store, kept: Vec<Physical>) -> Result<Option<BTreeSet<Physical>>> {
        let mut bases = BTreeSet::new();
        #[cfg(test)]
        if self.fault == crate::simulator::Fault::BreakChains {
            return Ok(Some(bases));
        }
        let mut open = kept;
        while let Some(place) = open.pop() {
            let base = if let Some(base) = self.bases.get(&place) {
                *base
            } else {
                let path = paths::version(place);
                let Some(bytes) = store.read(&path)? else { return Ok(None) };
                let base = base_of(&from_json(&path, &bytes)?);
                self.bases.insert(place, base);
                base
            };
            if let Some(base) = base.filter(|base| bases.insert(*base)) {
                open.push(base);
            }
        }
        Ok(Some(bases))
    }
}

/// Empties the folders of steps `first..end` down to their manifests.
fn prune_steps(store: &mut dyn Store, first: u64, end: u64) -> Result<()> {
    for step in store.list(paths::ROLLOUT)? {
        let Some(step) = paths::parse_number(&step).filter(|step| (first..end).contains(step)) else {
            continue;
        };
        let (dir, manifest) = (paths::step(step), paths::manifest(step));
        for name in store.list(&dir)? {
            let path = format!("{dir}/{name}");
            if path != manifest {
                store.remove(&path)?;
            }
        }
    }
    for column in store.list(paths::COLUMNS)? {
        for step in store.list(&format!("{}/{column}", paths::COLUMNS))? {
            if let Some(step) = paths::parse_number(&step).filter(|step| *step < end) {
                store.remove(&paths::column(&column, step))?;
            }
        }
    }
    Ok(())
}
