//! Committing a step: which groups it takes, what is masked for its age, and the account.

use std::collections::{BTreeMap, BTreeSet};

use slime_record::{Account, Draw, GroupEntry, Manifest, Refusal, VersionRun};

use super::{GroupId, Order, State, StepBuilder, StepPolicy};
use crate::segment::to_json;
use crate::{Commit, Format, Result, Store};
use slime_config::paths;

impl<F: Format> StepBuilder<F> {
    /// Commits the next step when exactly the wanted number of groups is accepted. A lost race is no error: the
    /// winner's manifest is read by the next poll.
    pub(super) fn commit_due(&mut self, store: &mut dyn Store, policy: &mut dyn StepPolicy) -> Result<()> {
        while self.step < self.config.num_steps {
            if self.config.order == Order::Arrival {
                self.expire();
            }
            if self.take().is_none() {
                return Ok(());
            }
            self.owner.check(store)?;
            self.lineage.refresh(store)?;
            if self.config.order == Order::Arrival {
                self.expire();
            }
            let Some(taken) = self.take() else { return Ok(()) };
            let manifest = self.manifest(&taken);
            if store.commit(&paths::manifest(self.step), &to_json(&manifest))? == Commit::Lost {
                return Ok(());
            }
            self.apply(manifest, policy)?;
        }
        Ok(())
    }

    fn min_version(&self) -> u64 {
        #[cfg(test)]
        if self.owner.fault == crate::simulator::Fault::IgnoreStaleness {
            return 0;
        }
        self.step.saturating_sub(self.config.max_staleness)
    }

    /// The groups of the step in training order; none while it lacks some.
    fn take(&self) -> Option<Vec<GroupId>> {
        let mut taken = Vec::new();
        match self.config.order {
            Order::Arrival => taken.extend(self.accepted.iter().take(self.config.num_groups)),
            Order::Fixed => {
                let groups = self.groups.range((self.step, 0)..=(self.step, u32::MAX));
                for (number, (id, group)) in (0..).zip(groups) {
                    // A group may be missing until a restarted builder draws it again.
                    if id.1 != number {
                        return None;
                    }
                    match group.state {
                        State::Waiting => return None,
                        State::Accepted(_) => taken.push(*id),
                        State::Refused { .. } => {}
                    }
                    if taken.len() == self.config.num_groups {
                        break;
                    }
                }
            }
        }
        (taken.len() == self.config.num_groups).then_some(taken)
    }

    /// Gives up accepted groups that have left the line or have no token young enough; their prompts are drawn again.
    fn expire(&mut self) {
        let min_version = self.min_version();
        let is_dead = |id: &GroupId| match &self.groups[id].state {
            State::Accepted(entry) => {
                let mut runs = entry.samples.iter().flat_map(|sample| &sample.versions);
                let is_void =
                    runs.clone().any(|run| !self.lineage.is_valid(run.version, entry.segment.epoch));
                is_void || runs.all(|run| run.version < min_version)
            }
            _ => false,
        };
        let dead: Vec<GroupId> = self.accepted.iter().filter(|id| is_dead(id)).copied().collect();
        for id in dead {
            if let State::Accepted(entry) = &self.groups[&id].state {
                self.num_expired_tokens += num_tokens(entry);
            }
            let group = &self.groups[&id];
            if group.cursor < self.cursor {
                self.returned.insert(group.cursor);
            }
            let next = self.next_group.entry(id.0).or_default();
            *next = (*next).max(id.1 + 1);
            self.forget(id);
        }
    }

    fn manifest(&self, taken: &[GroupId]) -> Manifest {
        let min_version = self.min_version();
        let is_taken: BTreeSet<GroupId> = taken.iter().copied().collect();
        let entry = |id: &GroupId| match &self.groups[id].state {
            State::Accepted(entry) => Some(masked(entry, min_version)),
            _ => None,
        };
        let groups: Vec<GroupEntry> = taken.iter().filter_map(entry).collect();
        let is_fixed = self.config.order == Order::Fixed;
        // In fixed order what lies behind the last taken group never was: the next step draws its prompts.
        let last = if is_fixed { taken.last().copied() } else { None };
        let is_past = |id: &GroupId| last.is_none_or(|last| *id <= last);
        let refused: Vec<Refusal> =
            self.groups.iter().filter(|(id, _)| is_past(id)).filter_map(refusal).collect();
        let carried: Vec<GroupEntry> = if is_fixed {
            Vec::new()
        } else {
            self.accepted.iter().filter(|id| !is_taken.contains(id)).filter_map(entry).collect()
        };
        let waiting = |(id, group): (&GroupId, &super::Group)| {
            matches!(group.state, State::Waiting).then(|| Draw {
                step: id.0,
                group: id.1,
                cursor: group.cursor,
                attempt: group.attempt,
            })
        };
        let outstanding =
            if is_fixed { Vec::new() } else { self.groups.iter().filter_map(waiting).collect() };
        let surplus = self.groups.iter().filter(|(id, _)| is_fixed && id.0 == self.step && !is_past(id));
        let surplus = surplus.filter_map(|(id, _)| entry(id)).map(|entry| num_tokens(&entry)).sum();
        let samples = || groups.iter().flat_map(|group| &group.samples);
        let account = Account {
            response: groups.iter().map(num_tokens).sum(),
            trained: samples().map(|sample| u64::from(sample.num_trained)).sum(),
            masked: samples().map(|sample| u64::from(sample.num_masked)).sum(),
            refused: refused.iter().map(|refusal| refusal.num_tokens).sum(),
            expired: self.num_expired_tokens,
            surplus,
            carried: carried.iter().map(num_tokens).sum(),
        };
        let (cursor, returned, next_group) = self.position_after(last);
        Manifest {
            step: self.step,
            builder: self.owner.incarnation,
            epoch: self.lineage.living().unwrap_or(0),
            min_version,
            groups,
            refused,
            carried,
            outstanding,
            returned,
            next_group,
            cursor,
            account,
        }
    }

    /// Cursor, positions to draw again and next group numbers once the step is committed.
    fn position_after(&self, last: Option<GroupId>) -> (u64, Vec<u64>, BTreeMap<u64, u32>) {
        if let Some(last) = last {
            return (self.cursor + u64::from(last.1) + 1, Vec::new(), BTreeMap::new());
        }
        let used: BTreeSet<u64> = self.groups.values().map(|group| group.cursor).collect();
        let cursor = used.last().map_or(0, |last| last + 1).max(self.cursor);
        let gaps = self.returned.iter().copied().chain(self.cursor..cursor);
        let returned = gaps.filter(|position| !used.contains(position)).collect();
        let mut next_group = self.next_group.clone();
        for id in self.groups.keys() {
            let next = next_group.entry(id.0).or_default();
            *next = (*next).max(id.1 + 1);
        }
        next_group.retain(|step, _| *step > self.step);
        (cursor, returned, next_group)
    }
}

fn refusal((id, group): (&GroupId, &super::Group)) -> Option<Refusal> {
    let State::Refused { reason, num_tokens } = &group.state else { return None };
    Some(Refusal {
        step: id.0,
        group: id.1,
        cursor: group.cursor,
        reason: reason.clone(),
        num_tokens: *num_tokens,
    })
}

fn num_tokens(entry: &GroupEntry) -> u64 {
    entry.samples.iter().map(|sample| u64::from(sample.response_len)).sum()
}

/// The entry with the counts that hold when tokens older than `min_version` are masked.
fn masked(entry: &GroupEntry, min_version: u64) -> GroupEntry {
    let mut entry = entry.clone();
    for sample in &mut entry.samples {
        let (young, old): (Vec<VersionRun>, Vec<VersionRun>) =
            sample.versions.iter().partition(|run| run.version >= min_version);
        sample.num_trained = young.iter().map(|run| run.len).sum();
        sample.num_masked = old.iter().map(|run| run.len).sum();
        sample.oldest_version = young.iter().map(|run| run.version).min().unwrap_or(min_version);
    }
    entry
}
