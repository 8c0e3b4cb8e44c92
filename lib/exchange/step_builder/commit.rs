//! Committing a step: which groups it takes, what is masked for its age, and the account.

use std::collections::{BTreeMap, BTreeSet};

use slime_record::{
    Account, Draw, DropReason, Dropped, GroupEntry, Manifest, Refusal, SampleEntry, VersionRun,
};

use super::buffer::Taken;
use super::{Group, GroupId, Order, State, StepBuilder, StepPolicy};
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
            if self.take(policy)?.is_none() {
                return Ok(());
            }
            self.owner.check(store)?;
            self.lineage.refresh(store)?;
            if self.config.order == Order::Arrival {
                self.expire();
            }
            let Some(taken) = self.take(policy)? else { return Ok(()) };
            let manifest = self.manifest(&taken, policy);
            if store.commit(&paths::manifest(self.step), &to_json(&manifest))? == Commit::Lost {
                return Ok(());
            }
            self.apply(manifest, policy)?;
        }
        Ok(())
    }

    fn manifest(&self, taken: &Taken, policy: &mut dyn StepPolicy) -> Manifest {
        let min_version = self.min_version();
        let is_taken: BTreeSet<GroupId> = taken.groups.iter().copied().collect();
        let groups: Vec<GroupEntry> = taken
            .groups
            .iter()
            .filter_map(|id| self.entry(*id))
            .map(|entry| masked(entry, min_version))
            .collect();
        let fate = match taken.last {
            Some(last) => self.decided_until(last, &is_taken),
            None => self.decided(&is_taken, min_version),
        };
        let account = account(&groups, &fate, self.num_replaced_tokens);
        let stages = policy.advance(self.history.stages(), self.step, &groups);
        let (cursor, returned, next_group) = self.position_after(taken.last);
        Manifest {
            step: self.step,
            builder: self.owner.incarnation,
            epoch: self.lineage.living().unwrap_or(0),
            min_version,
            groups,
            refused: fate.refused,
            dropped: fate.dropped,
            carried: fate.carried,
            outstanding: fate.outstanding,
            returned,
            next_group,
            cursor,
            account,
            stages,
        }
    }

    /// Fixed order: what lies behind the last decided group never was, and the next step draws its prompts.
    fn decided_until(&self, last: GroupId, is_taken: &BTreeSet<GroupId>) -> Fate {
        let mut fate = Fate::default();
        for (id, group) in self.groups.range((self.step, 0)..=(self.step, u32::MAX)) {
            let Some(num_tokens) = group.num_tokens() else { continue };
            fate.num_finished_tokens += num_tokens;
            match &group.state {
                _ if is_taken.contains(id) => {}
                _ if *id <= last => fate.refused.extend(group.refusal(*id)),
                _ => fate.dropped.push(Dropped {
                    step: id.0,
                    group: id.1,
                    cursor: group.cursor,
                    reason: DropReason::Surplus,
                    num_tokens,
                }),
            }
        }
        fate
    }

    /// Arrival order: what is finished and not taken is carried, and what runs goes on.
    fn decided(&self, is_taken: &BTreeSet<GroupId>, min_version: u64) -> Fate {
        let expired = self.expired.iter();
        let mut fate = Fate {
            dropped: expired.clone().map(|(dropped, _)| dropped.clone()).collect(),
            num_finished_tokens: expired.map(|(_, num_new)| num_new).sum(),
            ..Fate::default()
        };
        for (id, group) in &self.groups {
            match group.num_tokens() {
                None => fate.outstanding.push(Draw {
                    step: id.0,
                    group: id.1,
                    cursor: group.cursor,
                    chosen: group.chosen,
                    attempt: group.attempt,
                }),
                Some(num_tokens) if !group.is_counted => fate.num_finished_tokens += num_tokens,
                Some(_) => {}
            }
            if matches!(group.state, State::Refused { .. }) {
                fate.refused.extend(group.refusal(*id));
            }
        }
        let entries = |is_wanted: bool| {
            let ids = self.accepted.iter().filter(move |id| is_taken.contains(id) == is_wanted);
            ids.filter_map(|id| self.entry(*id)).map(|entry| masked(entry, min_version))
        };
        fate.carried = entries(false).collect();
        // What may be trained again stands behind what never was.
        let again = entries(true).map(|entry| GroupEntry { num_uses: entry.num_uses + 1, ..entry });
        fate.carried.extend(again.filter(|entry| entry.num_uses < self.config.max_reuse));
        fate
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

/// What becomes of the groups that a step does not train.
#[derive(Default)]
struct Fate {
    refused: Vec<Refusal>,
    dropped: Vec<Dropped>,
    carried: Vec<GroupEntry>,
    outstanding: Vec<Draw>,
    num_finished_tokens: u64,
}

impl Group {
    /// Response tokens, once it is judged.
    fn num_tokens(&self) -> Option<u64> {
        match &self.state {
            State::Waiting => None,
            State::Accepted(entry) => Some(entry.num_tokens()),
            State::Refused { num_tokens, .. } => Some(*num_tokens),
        }
    }

    /// What a manifest says of it when it is refused, by the filter or as a spare that no step needed.
    fn refusal(&self, id: GroupId) -> Option<Refusal> {
        let (reason, pass_rate) = match &self.state {
            State::Waiting => return None,
            State::Accepted(entry) => (entry.spare.clone()?, entry.scores.pass_rate),
            State::Refused { reason, pass_rate, .. } => (reason.clone(), *pass_rate),
        };
        let num_tokens = self.num_tokens()?;
        let (cursor, chosen, prompt_id) = (self.cursor, self.chosen, self.prompt.prompt_id.clone());
        Some(Refusal { step: id.0, group: id.1, cursor, chosen, prompt_id, pass_rate, reason, num_tokens })
    }
}

fn account(groups: &[GroupEntry], fate: &Fate, replaced: u64) -> Account {
    let sum = |of: fn(&SampleEntry) -> u32| -> u64 {
        groups.iter().flat_map(|group| &group.samples).map(|sample| u64::from(of(sample))).sum()
    };
    let (response, trained, masked) =
        (sum(|s| s.response_len), sum(|s| s.num_trained), sum(|s| s.num_masked));
    let dropped = |reason| -> u64 {
        fate.dropped.iter().filter(|d| d.reason == reason).map(|dropped| dropped.num_tokens).sum()
    };
    Account {
        finished: fate.num_finished_tokens,
        response,
        trained,
        masked,
        untrained: response - trained - masked,
        reused: groups.iter().filter(|group| group.num_uses > 0).map(GroupEntry::num_tokens).sum(),
        refused: fate.refused.iter().map(|refusal| refusal.num_tokens).sum(),
        expired: dropped(DropReason::Expired),
        surplus: dropped(DropReason::Surplus),
        carried: fate.carried.iter().filter(|group| group.num_uses == 0).map(GroupEntry::num_tokens).sum(),
        replaced,
    }
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
