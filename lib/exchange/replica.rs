//! The replica: follows the builder's assignments, generates with the asked version and seals whole groups.
//!
//! Driver loop:
//! ```text
//! let mut replica = Replica::start(&mut store, config, format)?;
//! loop {
//!     for action in replica.poll(&mut store)? {
//!         match action {
//!             Load { place, .. } => { engine.swap(paths::weights(place))?; replica.on_loaded(place) }
//!             Generate { step, group, attempt, prompt, .. } => engine.submit(..),
//!             Cancel { step, group, attempt } => engine.abort(..),
//!             Done => return Ok(()),
//!         }
//!     }
//!     for (step, group, attempt, rows) in engine.step()? { replica.on_finished(step, group, attempt, rows) }
//! }
//! ```
//! On a drain the driver calls [`Replica::drain`]; the next polls seal what is finished and end with `Done`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::segment::{from_json, to_json};
use crate::steps::open_steps;
use crate::{Format, Heartbeat, Lineage, Owner, Result, SegmentHeader, Store};
use slime_config::paths::{self, BUILDER, Physical};

/// What the builder asks of a replica about one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Generate it. `place`: with exactly these weights; none: with the newest of the line.
    New {
        /// Step it was drawn for.
        step: u64,
        /// Number inside the step.
        group: u32,
        /// Attempt.
        attempt: u32,
        /// Position in the data stream.
        cursor: u64,
        /// The prompt, as the builder's policy drew it.
        prompt: serde_json::Value,
        /// The weights.
        place: Option<Physical>,
    },
    /// Forget it.
    Cancel {
        /// Step it was drawn for.
        step: u64,
        /// Number inside the step.
        group: u32,
        /// Attempts up to this one.
        attempt: u32,
    },
}

/// One assignment file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Replaces everything asked before: a builder or a replica started.
    pub is_reset: bool,
    /// What is asked, in order.
    pub ops: Vec<Op>,
}

/// Settings of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Which replica this is.
    pub index: u32,
    /// Groups generated at once.
    pub max_in_flight: usize,
    /// Free groups (arrival order) go on with newer weights instead of finishing first.
    pub continue_on_newer: bool,
    /// Age of the first finished group at which a segment is sealed.
    pub seal_ms: u64,
    /// Size at which a segment is sealed.
    pub seal_bytes: usize,
    /// Time between heartbeats.
    pub beat_ms: u64,
}

/// What the driver shall do.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplicaAction {
    /// Load these weights, then call [`Replica::on_loaded`] or [`Replica::on_load_failed`].
    Load {
        /// The weights.
        place: Physical,
    },
    /// Generate all samples of a group, then call [`Replica::on_finished`].
    Generate {
        /// Step it was drawn for: part of the seed.
        step: u64,
        /// Number inside the step: part of the seed.
        group: u32,
        /// Attempt: not part of the seed.
        attempt: u32,
        /// The prompt.
        prompt: serde_json::Value,
        /// The loaded version.
        version: u64,
    },
    /// Stop generating a group and forget it.
    Cancel {
        /// Step.
        step: u64,
        /// Group.
        group: u32,
        /// Attempt.
        attempt: u32,
    },
    /// The run is over or drained.
    Done,
}

type GroupId = (u64, u32);

#[derive(Debug, Clone)]
struct Asked {
    attempt: u32,
    prompt: serde_json::Value,
    place: Option<Physical>,
}

#[derive(Debug, Clone)]
struct Running {
    attempt: u32,
    epoch: u64,
    place: Physical,
}

#[derive(Debug, Clone)]
struct Pending<R> {
    since_ms: u64,
    num_bytes: usize,
    rows: Vec<R>,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Replica<F: Format> {
    config: ReplicaConfig,
    format: F,
    pub(crate) owner: Owner,
    beat: Heartbeat,
    next_beat_ms: u64,
    lineage: Lineage,
    builder: u64,
    next_assignment: u64,
    low_step: u64,
    asked: BTreeMap<GroupId, Asked>,
    running: BTreeMap<GroupId, Running>,
    finished: Vec<(GroupId, u32, Vec<F::Row>)>,
    pending: BTreeMap<(u64, u64), Pending<F::Row>>,
    sealed: BTreeSet<(GroupId, u32)>,
    writing: Option<(String, Vec<u8>)>,
    next_segment: u64,
    loaded: Option<Physical>,
    loading: Option<Physical>,
    /// Kept over failed polls, so none is lost.
    actions: Vec<ReplicaAction>,
    is_draining: bool,
}

impl<F: Format> Replica<F> {
    /// Claims the next incarnation.
    pub fn start(store: &mut dyn Store, config: ReplicaConfig, format: F, note: &str) -> Result<Self> {
        let owner = Owner::claim(store, &paths::replica(config.index), note)?;
        let beat = Heartbeat { incarnation: owner.incarnation, ..Heartbeat::default() };
        let sealed = sealed_before(store, &config, &format)?;
        Ok(Self {
            config,
            format,
            owner,
            beat,
            next_beat_ms: 0,
            lineage: Lineage::default(),
            builder: 0,
            next_assignment: 0,
            low_step: 0,
            asked: BTreeMap::new(),
            running: BTreeMap::new(),
            finished: Vec::new(),
            pending: BTreeMap::new(),
            sealed,
            writing: None,
            next_segment: 0,
            loaded: None,
            loading: None,
            actions: Vec::new(),
            is_draining: false,
        })
    }

    /// The weights arrived.
    pub fn on_loaded(&mut self, place: Physical) {
        self.loaded = Some(place);
        self.loading = None;
        // Running groups that outlive a swap continue with the new weights.
        for running in self.running.values_mut() {
            running.place = place;
            running.epoch = self.lineage.living().unwrap_or(running.epoch);
        }
    }

    /// The weights could not be loaded (pruned meanwhile, or not there yet); asked again when still wanted.
    pub fn on_load_failed(&mut self) {
        self.loading = None;
    }

    /// All samples of a group are generated; rows of a cancelled attempt are ignored.
    pub fn on_finished(&mut self, step: u64, group: u32, attempt: u32, rows: Vec<F::Row>) {
        if self.running.get(&(step, group)).is_some_and(|running| running.attempt == attempt) {
            self.finished.push(((step, group), attempt, rows));
        }
    }

    /// Ends after sealing what is finished.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// The version the engine holds.
    pub fn loaded(&self) -> Option<Physical> {
        self.loaded
    }

    /// Number of groups being generated or waiting.
    pub fn num_asked(&self) -> usize {
        self.asked.len()
    }

    /// One round: beat, read, seal, then say what to do.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Vec<ReplicaAction>> {
        self.finish_writing(store)?;
        self.owner.check(store)?;
        if store.now_ms() >= self.next_beat_ms {
            self.beat.version = self.loaded.map(|place| place.version);
            self.beat.beat(store, &self.owner.name)?;
            self.next_beat_ms = store.now_ms() + self.config.beat_ms;
        }
        self.lineage.refresh(store)?;
        if !self.is_draining {
            self.follow(store)?;
        }
        if self.loaded.is_some_and(|place| !self.lineage.is_on_line(place)) {
            self.loaded = None;
        }
        self.keep_finished(store.now_ms());
        self.seal_due(store)?;
        self.cancel_unasked();
        if self.is_draining || store.exists(paths::DONE)? {
            if self.pending.is_empty() {
                self.actions.push(ReplicaAction::Done);
            }
            return Ok(std::mem::take(&mut self.actions));
        }
        self.choose_weights();
        self.admit();
        Ok(std::mem::take(&mut self.actions))
    }

    /// Reads the newest builder's assignment files, dense in their numbers, from its newest reset on.
    fn follow(&mut self, store: &mut dyn Store) -> Result<()> {
        let builders = store.list(&paths::owner(BUILDER))?;
        let newest_builder = builders.iter().filter_map(|name| paths::parse_number(name)).max().unwrap_or(0);
        let low_step = if newest_builder == self.builder { self.low_step } else { 0 };
        let mut files = BTreeMap::new();
        for step in open_steps(store)?.into_iter().filter(|step| *step >= low_step) {
            let dir = paths::assignments(step, self.config.index);
            for name in store.list(&dir)? {
                if let Some(number) = paths::parse_sequence(&name) {
                    files.insert(number, (step, format!("{dir}/{name}")));
                }
            }
        }
        if let Some(&(newest, _)) = files.keys().next_back()
            && newest > self.builder
        {
            for (&(builder, seq), (_, path)) in files.range((newest, 0)..).rev() {
                let Some(bytes) = store.read(path)? else { continue };
                if from_json::<Assignment>(path, &bytes)?.is_reset {
                    (self.builder, self.next_assignment) = (builder, seq);
                    break;
                }
            }
        }
        while let Some((step, path)) = files.get(&(self.builder, self.next_assignment)) {
            let Some(bytes) = store.read(path)? else { break };
            let assignment: Assignment = from_json(path, &bytes)?;
            if assignment.is_reset {
                self.asked.clear();
            }
            for op in assignment.ops {
                self.obey(op);
            }
            self.next_assignment += 1;
            self.low_step = *step;
        }
        Ok(())
    }

    fn obey(&mut self, op: Op) {
        match op {
            Op::New { step, group, attempt, prompt, place, .. } => {
                let is_sealed = self.sealed.contains(&((step, group), attempt));
                let is_older = self.asked.get(&(step, group)).is_some_and(|asked| asked.attempt > attempt);
                if !is_sealed && !is_older {
                    self.asked.insert((step, group), Asked { attempt, prompt, place });
                }
            }
            Op::Cancel { step, group, attempt } => {
                if self.asked.get(&(step, group)).is_some_and(|asked| asked.attempt <= attempt) {
                    self.asked.remove(&(step, group));
                }
            }
        }
    }

    /// Moves finished groups that are still wanted to the segments being filled.
    fn keep_finished(&mut self, now_ms: u64) {
        for (id, attempt, rows) in std::mem::take(&mut self.finished) {
            let Some(running) = self.running.get(&id).filter(|running| running.attempt == attempt) else {
                continue;
            };
            let epoch = running.epoch;
            self.running.remove(&id);
            if self.asked.get(&id).is_none_or(|asked| asked.attempt != attempt) {
                continue;
            }
            let num_bytes: usize = rows.iter().map(|row| self.format.row_bytes(row)).sum();
            let pending = self.pending.entry((id.0, epoch)).or_insert_with(|| Pending {
                since_ms: now_ms,
                num_bytes: 0,
                rows: Vec::new(),
            });
            pending.num_bytes += num_bytes;
            pending.rows.extend(rows);
            self.asked.remove(&id);
            self.sealed.insert((id, attempt));
        }
    }

    fn seal_due(&mut self, store: &mut dyn Store) -> Result<()> {
        while let Some((&(step, epoch), _)) = self.pending.iter().find(|(_, pending)| {
            self.is_draining
                || pending.num_bytes >= self.config.seal_bytes
                || store.now_ms() >= pending.since_ms + self.config.seal_ms
        }) {
            let header = SegmentHeader {
                step,
                epoch,
                replica: self.config.index,
                incarnation: self.owner.incarnation,
            };
            let bytes = self.format.encode(&header, &self.pending[&(step, epoch)].rows)?;
            let name = paths::segment_name(self.owner.incarnation, self.next_segment);
            self.writing = Some((format!("{}/{name}", paths::segments(step, self.config.index)), bytes));
            self.next_segment += 1;
            self.pending.remove(&(step, epoch));
            self.finish_writing(store)?;
        }
        Ok(())
    }

    /// A failed seal is repeated with the same name and bytes, since it may have been done.
    fn finish_writing(&mut self, store: &mut dyn Store) -> Result<()> {
        if let Some((path, bytes)) = &self.writing {
            store.seal(path, bytes)?;
            self.writing = None;
        }
        Ok(())
    }

    fn cancel_unasked(&mut self) {
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
    fn choose_weights(&mut self) {
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

    fn admit(&mut self) {
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
            });
        }
    }
}

/// The bytes of an assignment file.
pub(crate) fn encode_assignment(is_reset: bool, ops: Vec<Op>) -> Vec<u8> {
    to_json(&Assignment { is_reset, ops })
}

/// What earlier incarnations of this replica sealed; the builder adopts it, so it is not generated again.
fn sealed_before<F: Format>(
    store: &mut dyn Store,
    config: &ReplicaConfig,
    format: &F,
) -> Result<BTreeSet<(GroupId, u32)>> {
    let mut sealed = BTreeSet::new();
    for step in open_steps(store)? {
        let dir = paths::segments(step, config.index);
        for name in store.list(&dir)? {
            if let Some(bytes) = store.read(&format!("{dir}/{name}"))?
                && let Ok(digest) = format.digest(&bytes)
            {
                sealed.extend(digest.rows.iter().map(|row| ((row.id.step, row.id.group), row.id.attempt)));
            }
        }
    }
    Ok(sealed)
}
