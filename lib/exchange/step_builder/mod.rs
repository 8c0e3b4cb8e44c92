//! The step builder: alone draws prompts, assigns, accepts, filters and carries groups, and commits steps.
//!
//! Driver loop:
//! ```text
//! let mut builder = StepBuilder::start(&mut store, config, format)?;
//! loop {
//!     if drain::requested() { builder.drain() }
//!     for action in builder.poll(&mut store, &mut policy)? {
//!         match action {
//!             Committed { manifest } => log the step,
//!             Evaluate { place } => { write eval/<place>/<set>/...; on_evaluated(place) or on_evaluation_missed(place) }
//!             Done => return Ok(()),
//!         }
//!     }
//!     sleep a few milliseconds (or step the engine when builder and replica share the process)
//! }
//! ```
//! Its durable state is the chain of manifests plus the assignment files: a restarted builder, and one that finds a
//! step committed by another incarnation, continue from them.

mod buffer;
mod commit;
mod dispatch;
mod draws;
mod history;
mod judge;
mod parts;
mod policy;
mod scan;
mod settings;

use std::collections::{BTreeMap, BTreeSet};

use slime_record::{Dropped, GroupEntry, Manifest, Stages};

use crate::evaluations::Evaluations;
use crate::owner::Heartbeats;
use crate::steps::open_steps;
use crate::{Control, Format, Heartbeat, Lineage, Owner, Result, Store};
use dispatch::ReplicaView;
pub use history::{History, Outcome};
use parts::Parts;
pub use policy::{DrawnPrompt, FinishedGroup, Standing, StepPolicy, Verdict};
use scan::{Found, SegmentColumns};
pub use settings::{BufferOrder, BuilderConfig, Order};
use slime_config::paths::{self, BUILDER, Physical};

/// Beats after which the builder looks at what hardly ever changes or is not needed yet: epochs, and in fixed order the
/// samples of later steps.
const RARE_BEATS: u64 = 5;

/// What the driver shall do or know.
#[derive(Debug, Clone, PartialEq)]
pub enum BuilderAction {
    /// A step was committed, by this builder or another incarnation.
    Committed {
        /// Its manifest.
        manifest: Box<Manifest>,
    },
    /// Evaluate these weights, then call [`StepBuilder::on_evaluated`] or, when they are not there,
    /// [`StepBuilder::on_evaluation_missed`].
    Evaluate {
        /// The weights.
        place: Physical,
    },
    /// The run is over or drained.
    Done,
}

pub(crate) type GroupId = (u64, u32);

#[derive(Debug, Clone)]
enum State {
    Waiting,
    Accepted(Box<GroupEntry>),
    Refused { reason: String, num_tokens: u64, pass_rate: f64 },
}

#[derive(Debug, Clone)]
struct Group {
    /// A manifest has counted its tokens among those carried.
    is_counted: bool,
    cursor: u64,
    /// Position whose prompt it has, where that is another.
    chosen: Option<u64>,
    prompt: DrawnPrompt,
    attempt: u32,
    replica: Option<u32>,
    place: Option<Physical>,
    state: State,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct StepBuilder<F: Format> {
    config: BuilderConfig,
    format: F,
    pub(crate) owner: Owner,
    beat: Heartbeat,
    next_beat_ms: u64,
    next_rare_ms: u64,
    lineage: Lineage,
    control: Control,
    /// The next step to commit.
    step: u64,
    cursor: u64,
    returned: BTreeSet<u64>,
    history: History,
    next_group: BTreeMap<u64, u32>,
    groups: BTreeMap<GroupId, Group>,
    /// Accepted groups in the order of acceptance.
    accepted: Vec<GroupId>,
    /// Given up since the last manifest, and the tokens of those that no manifest has counted.
    expired: Vec<(Dropped, u64)>,
    num_replaced_tokens: u64,
    found: BTreeMap<GroupId, Vec<Found>>,
    /// Unfinished samples that a drained replica left.
    parts: BTreeMap<GroupId, Parts>,
    seen_segments: BTreeSet<String>,
    seen_columns: BTreeSet<String>,
    columns: BTreeMap<String, SegmentColumns>,
    replicas: Vec<ReplicaView>,
    heartbeats: Heartbeats,
    evaluations: Evaluations,
    evaluating: Option<Physical>,
    evaluated: Vec<Physical>,
    /// Kept over failed polls, so none is lost.
    actions: Vec<BuilderAction>,
    is_draining: bool,
    is_adopted: bool,
}

impl<F: Format> StepBuilder<F> {
    /// Claims the next incarnation; the first poll continues from what is committed.
    pub fn start(store: &mut dyn Store, config: BuilderConfig, format: F) -> Result<Self> {
        let owner = Owner::claim(store, BUILDER)?;
        let mut dirs = vec![paths::EVALUATIONS.to_owned()];
        for step in open_steps(store)? {
            dirs.push(paths::step(step));
        }
        for name in store.list(paths::EVALUATIONS)? {
            dirs.extend(paths::parse_physical(&name).map(paths::evaluation));
        }
        owner.sweep(store, dirs)?;
        let now_ms = store.now_ms();
        Ok(Self {
            beat: Heartbeat::of(owner.incarnation),
            replicas: (0..config.num_replicas).map(|_| ReplicaView::new(now_ms)).collect(),
            heartbeats: Heartbeats::new(),
            evaluations: Evaluations::new(config.eval_interval, config.num_steps, config.eval_at_start),
            format,
            owner,
            next_beat_ms: 0,
            next_rare_ms: 0,
            lineage: Lineage::default(),
            control: Control::default(),
            step: 0,
            cursor: 0,
            returned: BTreeSet::new(),
            history: History::new(config.history_steps, config.max_staleness),
            next_group: BTreeMap::new(),
            groups: BTreeMap::new(),
            accepted: Vec::new(),
            expired: Vec::new(),
            num_replaced_tokens: 0,
            found: BTreeMap::new(),
            parts: BTreeMap::new(),
            seen_segments: BTreeSet::new(),
            seen_columns: BTreeSet::new(),
            columns: BTreeMap::new(),
            evaluating: None,
            evaluated: Vec::new(),
            actions: Vec::new(),
            is_draining: false,
            is_adopted: false,
            config,
        })
    }

    /// This start among those of its owner.
    pub fn incarnation(&self) -> u64 {
        self.owner.incarnation
    }

    /// The next step to commit.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The stages that have begun.
    pub fn stages(&self) -> &Stages {
        self.history.stages()
    }

    /// Steps of which groups are drawn.
    pub fn open_steps(&self) -> impl Iterator<Item = u64> {
        let mut last = None;
        self.groups.keys().map(|id| id.0).filter(move |step| last.replace(*step) != Some(*step))
    }

    /// Accepted groups of the open steps.
    pub fn num_accepted(&self) -> usize {
        self.accepted.len()
    }

    /// Drawn groups that are not finished.
    pub fn num_waiting(&self) -> usize {
        self.groups.values().filter(|group| matches!(group.state, State::Waiting)).count()
    }

    /// Ends at the next poll; everything is durable already.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether it ends, or has ended, before the run is over.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The evaluation of `place` is written.
    pub fn on_evaluated(&mut self, place: Physical) {
        self.evaluated.push(place);
    }

    /// One round: read what is new, judge, commit, draw, assign.
    pub fn poll(&mut self, store: &mut dyn Store, policy: &mut dyn StepPolicy) -> Result<Vec<BuilderAction>> {
        let now_ms = store.now_ms();
        let is_beat = now_ms >= self.next_beat_ms;
        if is_beat {
            self.owner.check(store)?;
            self.beat.beat(store, BUILDER)?;
            self.next_beat_ms = now_ms + self.config.beat_ms;
        }
        // Once nothing is left to commit the end of the run may come at once.
        if is_beat || self.step >= self.config.num_steps {
            self.control = Control::read(store)?;
        }
        self.is_draining |= self.control.is_stopping;
        if self.is_draining {
            return Ok(vec![BuilderAction::Done]);
        }
        let is_rare = now_ms >= self.next_rare_ms;
        if is_rare {
            self.lineage.refresh(store)?;
        } else {
            self.lineage.refresh_versions(store)?;
        }
        if is_beat || self.lacks_replicas() {
            self.watch_replicas(store)?;
        }
        let names = self.catch_up(store, policy)?;
        if self.step < self.config.num_steps {
            self.scan(store, &names, is_rare)?;
            self.judge(store, policy)?;
            self.commit_due(store, policy)?;
        }
        if is_rare {
            self.next_rare_ms = now_ms + RARE_BEATS * self.config.beat_ms;
        }
        self.evaluate_due(store)?;
        let waits_for_evaluation = self.evaluating.is_some() && self.config.max_staleness == 0;
        if self.step < self.config.num_steps && !waits_for_evaluation && !self.control.is_paused {
            self.draw_due(policy)?;
            self.assign();
        }
        self.send(store)?;
        if self.step >= self.config.num_steps && self.evaluating.is_none() && self.control.is_done {
            self.actions.push(BuilderAction::Done);
        }
        Ok(std::mem::take(&mut self.actions))
    }

    /// The weights of `place` were not there (gone, and published elsewhere soon); it is asked for again while it is due.
    pub fn on_evaluation_missed(&mut self, place: Physical) {
        if self.evaluating == Some(place) {
            self.evaluating = None;
        }
    }

    fn evaluate_due(&mut self, store: &mut dyn Store) -> Result<()> {
        while let Some(place) = self.evaluated.first().copied() {
            self.owner.check(store)?;
            store.commit(&paths::evaluation_done(place), b"{}")?;
            self.evaluated.remove(0);
            if self.evaluating == Some(place) {
                self.evaluating = None;
            }
        }
        if self.evaluating.is_none()
            && let Some(place) = self.evaluations.due(store, &self.lineage)?
        {
            self.evaluating = Some(place);
            self.actions.push(BuilderAction::Evaluate { place });
        }
        Ok(())
    }
}
