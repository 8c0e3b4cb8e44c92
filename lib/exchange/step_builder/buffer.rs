//! The buffer of accepted groups: which of them a step takes, which are too old, and which stay for another step.

use std::collections::{BTreeMap, VecDeque};

use slime_record::{DropReason, Dropped, GroupEntry};

use super::{BufferOrder, GroupId, Order, State, StepBuilder, StepPolicy};
use crate::{Error, Format, Result};

/// The groups of a step.
pub(super) struct Taken {
    /// In training order.
    pub groups: Vec<GroupId>,
    /// The last group that was decided about (fixed order): what lies behind it never was.
    pub last: Option<GroupId>,
}

impl<F: Format> StepBuilder<F> {
    /// The groups of the next step; none while it lacks some.
    pub(super) fn take(&self, policy: &mut dyn StepPolicy) -> Result<Option<Taken>> {
        match self.config.order {
            Order::Arrival => self.take_arrived(policy),
            Order::Fixed => Ok(self.take_fixed()),
        }
    }

    /// The first accepted groups of the step's own; where all that were drawn do not suffice, also those that the filter
    /// would rather not have.
    fn take_fixed(&self) -> Option<Taken> {
        let num_groups = self.config.num_groups;
        let (mut kept, mut spare, mut last) = (Vec::new(), Vec::new(), None);
        let groups = self.groups.range((self.step, 0)..=(self.step, u32::MAX));
        for (number, (id, group)) in (0..).zip(groups) {
            // A group may be missing until a restarted builder draws it again.
            if id.1 != number {
                return None;
            }
            match &group.state {
                State::Waiting => return None,
                State::Accepted(entry) if entry.spare.is_some() => spare.push(*id),
                State::Accepted(_) => kept.push(*id),
                State::Refused { .. } => {}
            }
            last = Some(*id);
            if kept.len() == num_groups {
                return Some(Taken { groups: kept, last });
            }
        }
        let num_drawn = last.map_or(0, |id| id.1 as usize + 1);
        let is_drawn = num_drawn >= self.config.over_sampling.max(num_groups) || !self.config.has_filter;
        if !is_drawn || kept.len() + spare.len() < num_groups {
            return None;
        }
        spare.truncate(num_groups - kept.len());
        kept.extend(spare);
        kept.sort_unstable();
        Some(Taken { groups: kept, last })
    }

    fn take_arrived(&self, policy: &mut dyn StepPolicy) -> Result<Option<Taken>> {
        let num_groups = self.config.num_groups;
        if !self.is_needed() {
            return Ok(None);
        }
        let entries = self.accepted.iter().filter_map(|id| self.entry(*id).map(|entry| (*id, entry)));
        // Groups that were trained before, and then those the filter would rather not have, stand behind the others.
        let (mut kept, mut spare): (Vec<_>, Vec<_>) = entries.partition(|(_, entry)| entry.spare.is_none());
        kept.sort_by_key(|(_, entry)| entry.num_uses);
        if kept.len() < num_groups {
            let is_waiting = |group: &super::Group| matches!(group.state, State::Waiting);
            if self.groups.range(..=(self.step, u32::MAX)).any(|(_, group)| is_waiting(group)) {
                return Ok(None);
            }
            spare.truncate(num_groups - kept.len());
            kept.append(&mut spare);
        } else {
            kept = self.arrange(kept, policy)?;
            kept.truncate(num_groups);
        }
        let groups: Vec<GroupId> = kept.into_iter().map(|(id, _)| id).collect();
        Ok((groups.len() == num_groups).then_some(Taken { groups, last: None }))
    }

    /// Whether the step is to be decided now: with an order to choose by, when the trainer may need it next.
    fn is_needed(&self) -> bool {
        let newest = self.lineage.newest().map_or(0, |newest| newest.physical.version);
        self.config.buffer_order == BufferOrder::Fifo || self.step < newest + self.config.publish_interval
    }

    /// Groups in the order in which a step takes them.
    fn arrange<'a>(
        &self,
        mut groups: Vec<(GroupId, &'a GroupEntry)>,
        policy: &mut dyn StepPolicy,
    ) -> Result<Vec<(GroupId, &'a GroupEntry)>> {
        match self.config.buffer_order {
            BufferOrder::Fifo => {}
            BufferOrder::Newest => groups.sort_by_key(|(_, entry)| {
                let versions = entry.samples.iter().flat_map(|sample| &sample.versions);
                std::cmp::Reverse(versions.map(|run| run.version).min())
            }),
            BufferOrder::Priority => groups.sort_by(|(_, a), (_, b)| b.priority.total_cmp(&a.priority)),
            BufferOrder::Stratified => return Ok(by_stratum(groups)),
            BufferOrder::Policy => {
                let entries: Vec<&GroupEntry> = groups.iter().map(|(_, entry)| *entry).collect();
                let places = policy.arrange(self.step, &entries)?;
                let mut sorted = places.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..groups.len()) {
                    return Err(Error::Setting(format!(
                        "buffer order of step {}: expected each of the {} places once, got {places:?}",
                        self.step,
                        groups.len()
                    )));
                }
                groups = places.into_iter().map(|place| groups[place]).collect();
            }
        }
        Ok(groups)
    }

    /// The entry of an accepted group.
    pub(super) fn entry(&self, id: GroupId) -> Option<&GroupEntry> {
        match &self.groups.get(&id)?.state {
            State::Accepted(entry) => Some(entry),
            _ => None,
        }
    }

    /// Gives up accepted groups that have left the line or have no token young enough; their prompts are drawn again.
    pub(super) fn expire(&mut self) {
        let min_version = self.min_version();
        let is_dead = |id: &GroupId| {
            self.entry(*id).is_some_and(|entry| {
                let mut runs = entry.samples.iter().flat_map(|sample| &sample.versions);
                let is_void =
                    runs.clone().any(|run| !self.lineage.is_valid(run.version, entry.segment.epoch));
                is_void || runs.all(|run| run.version < min_version)
            })
        };
        let dead: Vec<GroupId> = self.accepted.iter().filter(|id| is_dead(id)).copied().collect();
        for id in dead {
            if let Some(entry) = self.entry(id).cloned() {
                let (num_tokens, group) = (entry.num_tokens(), &self.groups[&id]);
                let dropped = Dropped {
                    step: id.0,
                    group: id.1,
                    cursor: entry.cursor,
                    reason: DropReason::Expired,
                    num_tokens: if entry.num_uses > 0 { 0 } else { num_tokens },
                };
                let num_new = if group.is_counted { 0 } else { num_tokens };
                self.expired.push((dropped, num_new));
                // What a step has trained is used up.
                if entry.num_uses == 0 && entry.cursor < self.cursor {
                    self.returned.insert(entry.cursor);
                }
            }
            let next = self.next_group.entry(id.0).or_default();
            *next = (*next).max(id.1 + 1);
            self.forget(id);
        }
    }

    /// Versions from this one on are young enough for the next step.
    pub(super) fn min_version(&self) -> u64 {
        #[cfg(test)]
        if self.owner.fault == crate::simulator::Fault::IgnoreStaleness {
            return 0;
        }
        self.step.saturating_sub(self.config.max_staleness)
    }
}

/// The first of every stratum, then the second of every one, and so on.
fn by_stratum<'a>(groups: Vec<(GroupId, &'a GroupEntry)>) -> Vec<(GroupId, &'a GroupEntry)> {
    let mut strata: BTreeMap<&str, VecDeque<(GroupId, &'a GroupEntry)>> = BTreeMap::new();
    for (id, entry) in groups {
        strata.entry(&entry.stratum).or_default().push_back((id, entry));
    }
    let mut arranged = Vec::new();
    while !strata.is_empty() {
        strata.retain(|_, waiting| {
            arranged.extend(waiting.pop_front());
            !waiting.is_empty()
        });
    }
    arranged
}
