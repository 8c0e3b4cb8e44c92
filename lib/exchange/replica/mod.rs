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

use crate::steps::open_steps;
use crate::{Format, Heartbeat, Lineage, Owner, Result, Store};
use assignment::Asked;
pub(crate) use assignment::encode_assignment;
pub use assignment::{Assignment, Op};
use segments::{Pending, Sealed, Unwritten, sealed_before};

/// Settings of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Which replica this is.
    pub index: u32,
    /// Groups generated at once.
    pub max_in_flight: usize,
    /// Free groups (arrival order) go on with newer weights instead of finishing first.
    pub continue_on_newer: bool,
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
    lineage: Lineage,
    builder: u64,
    next_assignment: u64,
    low_step: u64,
    asked: BTreeMap<GroupId, Asked>,
    running: BTreeMap<GroupId, Running>,
    finished: Vec<(GroupId, u32, Vec<F::Row>)>,
    pending: BTreeMap<(u64, u64), Pending<F::Row>>,
    sealed: Sealed,
    writing: Option<Unwritten<F::Row>>,
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
        let dirs = open_steps(store)?.into_iter().map(|step| paths::segments(step, config.index)).collect();
        owner.sweep(store, dirs)?;
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
}
