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

mod assignment;
mod segments;
mod weights;

use std::collections::BTreeMap;

use slime_config::paths::{self, Physical};

use crate::steps::{Front, open_steps};
use crate::{Control, Format, Heartbeat, Lineage, Owner, Result, Store};
use assignment::Asked;
pub(crate) use assignment::encode_assignment;
pub use assignment::{Assignment, Op};
use segments::{Pending, Sealed, Unfinished, Unwritten, sealed_before};

/// Beats after which a replica looks at what hardly ever changes: epochs, and assignments in folders that it has left
/// behind.
const RARE_BEATS: u64 = 5;

/// Settings of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Which replica this is.
    pub index: u32,
    /// Groups generated at once.
    pub max_in_flight: usize,
    /// Free groups (arrival order) go on with newer weights instead of finishing first.
    pub continue_on_newer: bool,
    /// Once a step is full, nothing is generated before the weights that train on it: what runs stops where it is, and goes on
    /// under them (with `continue_on_newer` only).
    pub early_abort: bool,
    /// A drain seals unfinished samples, so that the next start goes on with them (with `continue_on_newer` only).
    pub keeps_parts: bool,
    /// Age of the first finished group at which a segment is sealed, at the latest.
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
    /// A group that will be generated, so that its prompt can become tokens.
    Prepare {
        /// Step.
        step: u64,
        /// Group.
        group: u32,
        /// Attempt.
        attempt: u32,
        /// The prompt.
        prompt: serde_json::Value,
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
        /// A file with its unfinished samples, which go on from where they are.
        parts: Option<String>,
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
    /// Stop generating and hand over what there is: [`Replica::on_unfinished`], once.
    Surrender,
    /// The run is over or drained.
    Done,
}

type GroupId = (u64, u32);

#[derive(Debug, Clone)]
struct Running {
    attempt: u32,
    epoch: u64,
    place: Physical,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Replica<F: Format> {
    config: ReplicaConfig,
    format: F,
    pub(crate) owner: Owner,
    beat: Heartbeat,
    next_beat_ms: u64,
    next_rare_ms: u64,
    /// When there was last a group to generate.
    worked_ms: u64,
    lineage: Lineage,
    front: Front,
    builder: u64,
    next_assignment: u64,
    /// Assignments that are not obeyed yet lie in this step or later ones.
    low_step: u64,
    /// The front when folders behind it were last looked into.
    rare_step: u64,
    asked: BTreeMap<GroupId, Asked>,
    running: BTreeMap<GroupId, Running>,
    finished: Vec<(GroupId, u32, Vec<F::Row>)>,
    pending: BTreeMap<(u64, u64), Pending<F::Row>>,
    sealed: Sealed,
    writing: Option<Unwritten<F::Row>>,
    /// Unfinished samples of a drain, once they are handed over.
    unfinished: Option<Unfinished<F::Row>>,
    next_segment: u64,
    loaded: Option<Physical>,
    loading: Option<Physical>,
    /// Kept over failed polls, so none is lost.
    actions: Vec<ReplicaAction>,
    is_draining: bool,
}

impl<F: Format> Replica<F> {
    /// Claims the next incarnation.
    pub fn start(store: &mut dyn Store, config: ReplicaConfig, format: F) -> Result<Self> {
        let owner = Owner::claim(store, &paths::replica(config.index))?;
        let open = open_steps(store)?;
        owner.sweep(store, open.iter().copied().map(paths::step).collect())?;
        let beat = Heartbeat::of(owner.incarnation);
        let front = Front::find(store)?;
        let is_live = |step: &u64| *step >= front.step || front.outstanding.contains(step);
        let sealed = sealed_before(store, open.into_iter().filter(is_live), &config, &format)?;
        Ok(Self {
            config,
            format,
            owner,
            beat,
            next_beat_ms: 0,
            next_rare_ms: 0,
            worked_ms: 0,
            lineage: Lineage::default(),
            front,
            builder: 0,
            next_assignment: 0,
            low_step: 0,
            rare_step: 0,
            asked: BTreeMap::new(),
            running: BTreeMap::new(),
            finished: Vec::new(),
            pending: BTreeMap::new(),
            sealed,
            writing: None,
            unfinished: None,
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

    /// The samples of every group that was running, as far as they are; groups without a token are left out.
    pub fn on_unfinished(&mut self, groups: Vec<(u64, u32, u32, Vec<F::Row>)>) {
        let mut unfinished = Unfinished::new();
        for (step, group, attempt, rows) in groups {
            if let Some(running) =
                self.running.get(&(step, group)).filter(|running| running.attempt == attempt)
            {
                unfinished.entry((step, running.epoch)).or_default().extend(rows);
            }
        }
        self.running.clear();
        self.unfinished = Some(unfinished);
    }

    /// Ends after sealing what is finished.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether it ends, or has ended, before the run is over.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The version the engine holds.
    pub fn loaded(&self) -> Option<Physical> {
        self.loaded
    }

    /// This start among those of its owner.
    pub fn incarnation(&self) -> u64 {
        self.owner.incarnation
    }

    /// Segments that this start has sealed.
    pub fn num_sealed(&self) -> u64 {
        self.next_segment
    }

    /// Whether what runs has stopped, since the step is full for which it was asked (`early_abort`).
    pub fn is_stopped(&self) -> bool {
        let loaded = self.loaded.map_or(0, |place| place.version);
        self.config.early_abort && self.front.step > loaded && !self.is_draining
    }

    /// Number of groups being generated or waiting.
    pub fn num_asked(&self) -> usize {
        self.asked.len()
    }

    /// One round: beat, read, seal, then say what to do.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Vec<ReplicaAction>> {
        self.finish_writing(store)?;
        let now_ms = store.now_ms();
        let is_beat = now_ms >= self.next_beat_ms;
        if is_beat {
            self.owner.check(store)?;
            self.beat.version = self.loaded.map(|place| place.version);
            self.beat.beat(store, &self.owner.name)?;
            self.next_beat_ms = now_ms + self.config.beat_ms;
        }
        // What ends it may come at once when it has just become idle; else once a beat is enough.
        if !self.running.is_empty() {
            self.worked_ms = now_ms;
        }
        let is_newly_idle = self.running.is_empty() && now_ms < self.worked_ms + self.config.beat_ms;
        let control = if is_beat || is_newly_idle { Control::read(store)? } else { Control::default() };
        self.is_draining |= control.is_stopping;
        let is_rare = now_ms >= self.next_rare_ms;
        if !self.is_draining {
            self.follow(store, is_rare)?;
        }
        if is_rare {
            self.lineage.refresh(store)?;
            self.next_rare_ms = now_ms + RARE_BEATS * self.config.beat_ms;
        } else if self.needs_versions() {
            self.lineage.refresh_versions(store)?;
        }
        if self.loaded.is_some_and(|place| !self.lineage.is_on_line(place)) {
            self.loaded = None;
        }
        self.keep_finished(now_ms);
        self.seal_due(store)?;
        self.cancel_unasked();
        if self.is_draining || control.is_done {
            self.end(store)?;
            return Ok(std::mem::take(&mut self.actions));
        }
        self.choose_weights();
        self.admit();
        Ok(std::mem::take(&mut self.actions))
    }
}
