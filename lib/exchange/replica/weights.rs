//! Which weights are loaded, and which groups run on them.

use super::{Replica, ReplicaAction, Running};
use crate::Format;

impl<F: Format> Replica<F> {
    /// Whether a group wants weights that may have been published since the versions were listed.
    pub(super) fn needs_versions(&self) -> bool {
        self.asked.values().any(|asked| match asked.place {
            Some(place) => !self.lineage.is_on_line(place) || self.lineage.locate(place.version).is_none(),
            None => true,
        })
    }

    pub(super) fn cancel_unasked(&mut self) {
        let (asked, lineage, actions) = (&self.asked, &self.lineage, &mut self.actions);
        self.running.retain(|&(step, group), running| {
            // What runs on weights that left the line starts again.
            let is_valid = lineage.is_valid(running.place.version, running.epoch);
            let is_asked = asked.get(&(step, group)).is_some_and(|asked| {
                is_valid
                    && asked.attempt == running.attempt
                    && asked.place.is_none_or(|place| place.version == running.place.version)
            });
            if !is_asked {
                actions.push(ReplicaAction::Cancel { step, group, attempt: running.attempt });
            }
            is_asked
        });
    }

    /// The weights the oldest waiting group wants; a swap waits for groups that must keep theirs.
    pub(super) fn choose_weights(&mut self) {
        if self.loading.is_some() {
            return;
        }
        let waiting = self.asked.iter().find(|(id, _)| !self.running.contains_key(id));
        let newest = self.lineage.newest().map(|newest| newest.physical);
        let wanted = match waiting {
            Some((_, asked)) => match asked.place {
                Some(place) => self.lineage.locate(place.version),
                None => newest,
            },
            None if self.config.continue_on_newer && !self.running.is_empty() => newest,
            None => None,
        };
        let Some(place) = wanted.filter(|place| self.loaded.map(|l| l.version) != Some(place.version)) else {
            return;
        };
        let may_swap = self.running.iter().all(|(id, _)| {
            self.config.continue_on_newer && self.asked.get(id).is_some_and(|asked| asked.place.is_none())
        });
        if may_swap {
            self.loading = Some(place);
            self.actions.push(ReplicaAction::Load { place });
        }
    }

    pub(super) fn admit(&mut self) {
        let (Some(place), None, Some(epoch)) = (self.loaded, self.loading, self.lineage.living()) else {
            return;
        };
        let newest = self.lineage.newest().map(|newest| newest.physical.version);
        for (&(step, group), asked) in &self.asked {
            if self.running.len() >= self.config.max_in_flight {
                break;
            }
            let wanted = asked.place.map(|place| place.version).or(newest);
            if self.running.contains_key(&(step, group)) {
                continue;
            }
            if wanted != Some(place.version) {
                // Later groups wait too, so the swap that the oldest one wants comes.
                break;
            }
            self.running.insert((step, group), Running { attempt: asked.attempt, epoch, place });
            self.actions.push(ReplicaAction::Generate {
                step,
                group,
                attempt: asked.attempt,
                prompt: asked.prompt.clone(),
                version: place.version,
                parts: asked.parts.clone(),
            });
        }
    }
}
