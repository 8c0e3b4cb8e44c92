//! What must hold in every schedule, checked against the truth on disk.

use std::collections::{BTreeMap, BTreeSet};

use slime_config::paths;
use slime_record::Manifest;
use xxhash_rust::xxh3::xxh3_64;

use super::files::World;
use super::format::{SimFormat, SimPolicy};
use super::ledger::{Ledger, Totals};
use super::plan::Plan;
use crate::{Bytes, Format, History, Order, Physical, StepPolicy};

/// Watches one schedule.
#[derive(Default)]
pub(super) struct Oracle {
    manifests: Vec<(Vec<u8>, Manifest)>,
    ledger: Ledger,
}

impl Oracle {
    /// Remembers new manifests; one that is there never changes nor goes away.
    pub fn watch(&mut self, world: &World) {
        while let Some(bytes) = world.truth(&paths::manifest(self.manifests.len() as u64)) {
            let manifest: Manifest = serde_json::from_slice(&bytes).expect("a committed manifest is whole");
            self.ledger.enter(world, &manifest);
            self.manifests.push((bytes.to_vec(), manifest));
        }
        for (step, (bytes, _)) in self.manifests.iter().enumerate() {
            let now = world.truth(&paths::manifest(step as u64));
            let is_same = now.is_some_and(|now| *now == bytes[..]);
            assert!(is_same, "manifest {step} was changed after its commit");
        }
    }

    /// What became of the tokens of all steps.
    pub fn totals(&self) -> Totals {
        self.ledger.totals
    }

    pub fn num_committed(&self) -> usize {
        self.manifests.len()
    }

    /// The steps in the state of a checkpoint, where it is still there.
    pub fn state(world: &World, place: Physical) -> Option<Vec<u64>> {
        let bytes = world.truth(&format!("{}/state", paths::checkpoint(place)))?;
        if let Some(mark) = world.truth(&paths::complete(place)) {
            assert_eq!(*mark, Self::mark(&bytes)[..], "checkpoint {place} is not the one that was completed");
        }
        Some(serde_json::from_slice(&bytes).expect("numbers"))
    }

    /// What COMPLETE says of a state.
    pub fn mark(state: &[u8]) -> Vec<u8> {
        xxh3_64(state).to_le_bytes().to_vec()
    }

    /// Each manifest once, in order.
    pub fn check_consumed(consumed: &[u64]) {
        let wanted: Vec<u64> = (0..consumed.len() as u64).collect();
        assert_eq!(consumed, wanted, "manifests consumed on this lineage");
    }

    /// What is trained is what was committed, young enough, and lies where the manifest says.
    pub fn check_trained(
        &self,
        plan: &Plan,
        manifest: &Manifest,
        segments: &BTreeMap<String, Bytes>,
        columns: &BTreeMap<String, Bytes>,
    ) {
        let step = manifest.step;
        let committed = self.manifests.get(step as usize).map(|(_, manifest)| manifest);
        assert_eq!(committed, Some(manifest), "step {step} trains something that was not committed");
        assert_eq!(manifest.groups.len(), plan.builder.num_groups);
        for group in &manifest.groups {
            let digest = SimFormat.digest(&segments[&group.segment.path]).expect("verified");
            let rows = &digest.rows[group.first_row as usize..][..group.samples.len()];
            for column in &group.columns {
                let digest = SimFormat.column(&column.name, &columns[&column.path]).expect("verified");
                assert_eq!(digest.segment, group.segment.path);
                for (row, sample) in digest.rows[group.first_row as usize..].iter().zip(rows) {
                    assert_eq!(row.id, sample.id);
                    assert_eq!(row.tokens_hash, sample.tokens_hash, "{}: computed for other tokens", row.id);
                }
            }
            for (sample, row) in group.samples.iter().zip(rows) {
                let key = (row.id.step, row.id.group, row.id.attempt, row.id.index);
                assert_eq!(key, (group.step, group.group, group.attempt, sample.index));
                assert_eq!((row.tokens_hash, &row.prompt_id), (sample.tokens_hash, &group.prompt_id));
                let trained = row.trained.iter().filter(|run| run.version >= manifest.min_version);
                assert_eq!(trained.clone().map(|run| run.len).sum::<u32>(), sample.num_trained);
                for run in trained {
                    assert!(run.version <= step, "step {step} trains version {}", run.version);
                    assert!(
                        step - run.version <= plan.builder.max_staleness,
                        "staleness: step {step} trains tokens of version {}",
                        run.version
                    );
                    if plan.builder.order == Order::Fixed {
                        assert_eq!(run.version, plan.builder.version_of(step), "v({step})");
                        assert_eq!(group.step, step);
                    }
                }
            }
        }
    }

    /// What the first 0, 1, 2, .. manifests say to later draws.
    fn histories(&self, plan: &Plan) -> Vec<History> {
        let mut history = History::new(plan.builder.history_steps, plan.builder.max_staleness);
        let learn = |(_, manifest): &(Vec<u8>, Manifest)| {
            history.learn(manifest);
            history.clone()
        };
        let first = History::new(plan.builder.history_steps, plan.builder.max_staleness);
        std::iter::once(first).chain(self.manifests.iter().map(learn)).collect()
    }

    /// At the end every step was consumed, no group or prompt was used more often than it may be, and none was lost.
    pub fn check_end(&self, plan: &Plan, consumed: &[u64]) {
        Self::check_consumed(consumed);
        assert_eq!(consumed.len() as u64, plan.builder.num_steps);
        let mut uses: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        let mut cursors = BTreeSet::new();
        let mut policy = plan.policy();
        let histories = self.histories(plan);
        for (_, manifest) in &self.manifests {
            let distinct: BTreeSet<_> = manifest.groups.iter().map(|g| (g.step, g.group)).collect();
            assert_eq!(distinct.len(), manifest.groups.len(), "a group twice in step {}", manifest.step);
            for group in &manifest.groups {
                let id = (group.step, group.group);
                let num_uses = uses.entry(id).or_default();
                assert_eq!(group.num_uses, *num_uses, "uses of group {}/{}", id.0, id.1);
                *num_uses += 1;
                assert!(*num_uses <= plan.builder.max_reuse, "group {}/{} used too often", id.0, id.1);
                let history = &histories[group.step.saturating_sub(plan.builder.max_staleness) as usize];
                let chosen = policy.choose(group.step, group.cursor, history).expect("an open choice");
                assert_eq!(group.chosen.unwrap_or(group.cursor), chosen, "chosen by another history");
                let prompt_id = SimPolicy::prompt_id(group.step, chosen, history.stages());
                assert_eq!(group.prompt_id, prompt_id, "the prompt of another stage");
                let num_samples = SimPolicy::num_samples(&prompt_id) as usize;
                assert_eq!(group.samples.len(), num_samples, "the group size of another stage");
                let is_new = cursors.insert(group.cursor);
                assert!(is_new || *num_uses > 1, "prompt {} used twice", group.cursor);
                let is_spare = group.spare.is_some();
                assert_eq!(
                    plan.policy().refuses(&group.prompt_id),
                    is_spare,
                    "a refused group is trained, or one is spared that was not refused"
                );
            }
            for refusal in &manifest.refused {
                assert!(cursors.insert(refusal.cursor), "prompt {} used twice", refusal.cursor);
            }
            let mut known = cursors.clone();
            known.extend(manifest.returned.iter().copied());
            let carried =
                manifest.carried.iter().filter(|group| group.num_uses == 0).map(|group| group.cursor);
            for cursor in carried.chain(manifest.outstanding.iter().map(|d| d.cursor)) {
                assert!(known.insert(cursor), "prompt {cursor} is in two places");
            }
            let all: BTreeSet<u64> = (0..manifest.cursor).collect();
            assert_eq!(known, all, "prompts lost or invented by step {}", manifest.step);
        }
    }
}
