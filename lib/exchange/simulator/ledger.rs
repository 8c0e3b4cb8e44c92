//! Where every sampled token went, by the truth on disk: each finished group is counted once and has the tokens its
//! segment says, and what one manifest carries the next one has.

use std::collections::BTreeSet;

use slime_config::paths;
use slime_record::{DropReason, GroupEntry, Manifest};

use super::files::World;
use super::format::SimFormat;
use crate::Format;

/// What the manifests so far have accounted for.
#[derive(Default)]
pub(super) struct Ledger {
    /// Finished groups that some manifest has counted, and how often their prompt was drawn anew since.
    counted: BTreeSet<(u64, u32)>,
    carried: BTreeSet<(u64, u32)>,
    num_carried_tokens: u64,
    /// Tokens of all steps by what became of them.
    pub totals: Totals,
}

/// Tokens by what became of them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    pub trained: u64,
    pub masked: u64,
    pub refused: u64,
    pub expired: u64,
    pub surplus: u64,
    pub carried: u64,
    pub reused: u64,
    pub replaced: u64,
    /// Of the trained groups: those that went on after a drain.
    pub continued: u64,
    /// Of the trained groups: those whose prompt a curriculum chose.
    pub chosen: u64,
    /// Of the trained groups: those with the size of a stage that a metric began.
    pub staged: u64,
}

impl Ledger {
    /// Checks a manifest that has just appeared.
    pub fn enter(&mut self, world: &World, manifest: &Manifest) {
        let (step, account) = (manifest.step, &manifest.account);
        let fresh = |group: &&GroupEntry| group.num_uses == 0;
        let mut finished = 0;
        let mut seen = Vec::new();
        for group in manifest.groups.iter().filter(fresh).chain(manifest.carried.iter().filter(fresh)) {
            assert_eq!(group.num_tokens(), tokens_at(world, group), "step {step}: tokens of a group");
            seen.push((group.step, group.group, group.num_tokens()));
        }
        let refused = manifest.refused.iter().map(|group| (group.step, group.group, group.num_tokens));
        let dropped = manifest.dropped.iter().filter(|group| group.num_tokens > 0);
        let dropped = dropped.map(|group| (group.step, group.group, group.num_tokens));
        for (of_step, group, num_tokens) in refused.chain(dropped) {
            let known = attempts(world, (of_step, group));
            // A step that was pruned has nothing to compare with.
            let is_known = known.is_empty() || known.contains(&num_tokens);
            assert!(
                is_known,
                "step {step}: {num_tokens} tokens of group {of_step}/{group}, sealed {known:?}"
            );
            seen.push((of_step, group, num_tokens));
        }
        for (of_step, group, num_tokens) in seen {
            if !self.carried.contains(&(of_step, group)) {
                finished += num_tokens;
                assert!(
                    self.counted.insert((of_step, group)),
                    "step {step}: the tokens of group {of_step}/{group} are counted twice"
                );
            }
        }
        assert_eq!(account.finished, finished, "step {step}: finished tokens");
        let sum = |of: DropReason| -> u64 {
            manifest.dropped.iter().filter(|d| d.reason == of).map(|d| d.num_tokens).sum()
        };
        assert_eq!((account.expired, account.surplus), (sum(DropReason::Expired), sum(DropReason::Surplus)));
        let (wanted, placed) = account.balance(self.num_carried_tokens);
        assert_eq!(wanted, placed, "step {step}: tokens are lost or invented: {account:?}");
        let response: u64 = manifest.groups.iter().map(GroupEntry::num_tokens).sum();
        assert_eq!(account.response, response);
        assert_eq!(account.trained + account.masked + account.untrained, response);
        self.num_carried_tokens = account.carried;
        self.carried = manifest.carried.iter().filter(fresh).map(|group| (group.step, group.group)).collect();
        self.add(manifest);
    }

    fn add(&mut self, manifest: &Manifest) {
        let (account, totals) = (&manifest.account, &mut self.totals);
        totals.trained += account.trained;
        totals.masked += account.masked;
        totals.refused += account.refused;
        totals.expired += account.expired;
        totals.surplus += account.surplus;
        totals.carried += account.carried;
        totals.reused += account.reused;
        totals.replaced += account.replaced;
        let continued = manifest.groups.iter().filter(|group| group.samples.iter().any(|s| s.part > 0));
        totals.continued += continued.map(GroupEntry::num_tokens).sum::<u64>();
        let sum = |is_meant: fn(&&GroupEntry) -> bool| -> u64 {
            manifest.groups.iter().filter(is_meant).map(GroupEntry::num_tokens).sum()
        };
        totals.chosen += sum(|group| group.chosen.is_some());
        totals.staged += sum(|group| group.samples.len() > 2);
    }
}

/// Response tokens that the segment of an entry holds for it.
fn tokens_at(world: &World, group: &GroupEntry) -> u64 {
    let bytes = world.truth(&group.segment.path).expect("the segment of a group that a manifest names");
    let digest = SimFormat.digest(&bytes).expect("verified");
    let rows = &digest.rows[group.first_row as usize..][..group.samples.len()];
    rows.iter().map(|row| u64::from(row.response_len)).sum()
}

/// Response tokens of every attempt of a group that is sealed.
fn attempts(world: &World, (step, group): (u64, u32)) -> Vec<u64> {
    let mut found = Vec::new();
    for path in world.paths(&format!("{}/", paths::step(step))) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let bytes = paths::parse_segment(name).and_then(|_| world.truth(&path));
        let Some(digest) = bytes.and_then(|bytes| SimFormat.digest(&bytes).ok()) else { continue };
        for rows in digest.rows.chunk_by(|a, b| (a.id.group, a.id.attempt) == (b.id.group, b.id.attempt)) {
            if rows[0].id.group == group {
                found.push(rows.iter().map(|row| u64::from(row.response_len)).sum());
            }
        }
    }
    found
}
