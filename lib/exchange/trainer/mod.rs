//! The trainer: alone makes the line of versions, trains each manifest once, publishes, checkpoints, prunes and ends.
//!
//! Driver loop (rank 0 polls and broadcasts the actions to the other ranks):
//! ```text
//! let mut trainer = Trainer::start(&mut store, config)?;
//! loop {
//!     if drain::requested() { trainer.drain() }
//!     for action in trainer.poll(&mut store)? {
//!         match action {
//!             Load { checkpoint } => { load it, or the import; trainer.on_loaded() or on_load_failed() }
//!             SaveWeights { place, .. } => { write or offer it; trainer.on_saved(publication) }
//!             Train { manifest, segments, columns } => { one training step; trainer.on_trained() }
//!             SaveCheckpoint { place, .. } => copy the state, start writing it to paths::checkpoint(place)
//!             Done { is_complete } => return Ok(()),
//!         }
//!     }
//!     if a checkpoint is written { trainer.on_checkpointed(place, mark) }
//!     sleep a few milliseconds when there was no action
//! }
//! ```

mod checkpoint;
mod prune;

use std::collections::BTreeMap;

use slime_record::{Epoch, Manifest, Publication};

use self::checkpoint::{Writing, start_from};
use crate::evaluations::Evaluations;
use crate::holder;
use crate::owner::Heartbeats;
use crate::segment::{from_json, to_json};
use crate::store::verify;
use crate::{Bytes, Commit, Control, Error, Heartbeat, Lineage, Result, Store};
use slime_config::paths::{self, Physical};

/// How often pruning looks for complete checkpoints in the time that one has to be seen for.
const PRUNES_PER_VISIBILITY: u64 = 4;

/// Settings of the trainer.
#[derive(Debug, Clone)]
pub struct TrainerConfig {
    /// Training steps of the run.
    pub num_steps: u64,
    /// Versions are published when this divides them; the last one always is.
    pub publish_interval: u64,
    /// Bound on staleness: how far back the weights of a checkpoint's line are kept.
    pub max_staleness: u64,
    /// Checkpoints are taken at published versions once at least this many steps have passed since the last; 0 takes
    /// only the last one, and those that a drain or a wish asks for.
    pub checkpoint_interval: u64,
    /// Complete checkpoints that are kept.
    pub keep_checkpoints: usize,
    /// Weights of versions that this divides are kept for ever; 0 keeps none.
    pub keep_weights_every: u64,
    /// Start from the checkpoint of this version of the line; without, from the newest.
    pub resume: Option<u64>,
    /// Twice the longest time a name may stay invisible to another reader; pruning waits for it.
    pub visibility_ms: u64,
    /// As the step builder's: the run is done after the last evaluation.
    pub eval_interval: u64,
    /// Whether version 0 is evaluated, too.
    pub eval_at_start: bool,
    /// Number of replicas whose acknowledged versions are kept.
    pub num_replicas: u32,
    /// Time between heartbeats.
    pub beat_ms: u64,
}

/// What the driver shall do.
#[derive(Debug, Clone)]
pub enum TrainerAction {
    /// Load a checkpoint, or the import when there is none; then [`Trainer::on_loaded`] or, when it is not there any
    /// more, [`Trainer::on_load_failed`].
    Load {
        /// The checkpoint.
        checkpoint: Option<Physical>,
    },
    /// Write or offer the weights as this version, then [`Trainer::on_saved`].
    SaveWeights {
        /// The version to be published.
        place: Physical,
        /// Whether it is kept beyond what readers need, so that it has to stand by itself on disk.
        is_whole: bool,
        /// Published versions that a reader may still ask for; memory of other versions may go.
        readable: Vec<Physical>,
    },
    /// Train one step, then [`Trainer::on_trained`].
    Train {
        /// What to train.
        manifest: Box<Manifest>,
        /// Its segments by path, verified.
        segments: BTreeMap<String, Bytes>,
        /// Its column files by path, verified.
        columns: BTreeMap<String, Bytes>,
    },
    /// Copy the trainer state and begin to write it below `paths::checkpoint(place)`; [`Trainer::on_checkpointed`] follows
    /// when it is written, while training goes on. The next one comes after that.
    SaveCheckpoint {
        /// The version.
        place: Physical,
        /// Published versions that a run which starts from it may ask for: they have to be on disk before.
        needs: Vec<Physical>,
    },
    /// The run is over, or drained when it is not complete.
    Done {
        /// All steps are trained and evaluated.
        is_complete: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Starting,
    Loading,
    LoadFailed,
    MustSave,
    Saving,
    MustPublish(Box<Publication>),
    MustCheckpoint,
    Waiting,
    Training,
    Done,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Trainer {
    config: TrainerConfig,
    epoch: u64,
    beat: Heartbeat,
    next_beat_ms: u64,
    lineage: Lineage,
    phase: Phase,
    /// Training steps done.
    version: u64,
    /// The newest version whose checkpoint was begun.
    last_checkpoint: u64,
    writing: Option<Writing>,
    completed: Vec<(Physical, u64)>,
    next_prune_ms: u64,
    held: Heartbeats,
    evaluations: Evaluations,
    oldest_steps: BTreeMap<u64, u64>,
    /// What publications say of the versions whose changes they tell.
    bases: BTreeMap<Physical, Option<Physical>>,
    /// Steps below are pruned, as far as this incarnation knows.
    first_step: u64,
    wants_save: bool,
    is_draining: bool,
    #[cfg(test)]
    pub(crate) fault: crate::simulator::Fault,
}

impl Trainer {
    /// Creates the next epoch from the newest complete checkpoint of the line.
    pub fn start(store: &mut dyn Store, config: TrainerConfig) -> Result<Self> {
        let mut lineage = Lineage::default();
        lineage.refresh(store)?;
        loop {
            let checkpoint = start_from(&lineage, store, config.resume)?;
            let epoch = Epoch {
                epoch: lineage.living().unwrap_or(0) + 1,
                parent: checkpoint.map(|place| place.epoch),
                checkpoint: checkpoint.map_or(0, |place| place.version),
                holder: store.writer().to_owned(),
            };
            if store.commit(&paths::epoch(epoch.epoch), &to_json(&epoch))? == Commit::Lost {
                // The winner's content may not be visible yet: look again, from its line.
                lineage.refresh(store)?;
                if lineage.living().is_none_or(|living| living < epoch.epoch) {
                    return Err(Error::Stale { path: paths::epoch(epoch.epoch) });
                }
                continue;
            }
            // A checkpoint completed, or pruned, before the epoch existed counts: then start once more.
            let again = start_from(&lineage, store, config.resume)?;
            lineage.insert(epoch.clone())?;
            if again != checkpoint {
                continue;
            }
            let folders = [paths::EPOCHS, paths::VERSIONS, paths::ROLLOUT, paths::CONTROL];
            let mut dirs = folders.map(str::to_owned).to_vec();
            for name in store.list(paths::CHECKPOINTS)? {
                dirs.extend(paths::parse_physical(&name).map(paths::checkpoint));
            }
            holder::sweep(store, paths::TRAINER, epoch.epoch, &dirs)?;
            return Ok(Self {
                epoch: epoch.epoch,
                beat: Heartbeat::of(epoch.epoch),
                next_beat_ms: 0,
                lineage,
                phase: Phase::Starting,
                version: epoch.checkpoint,
                last_checkpoint: epoch.checkpoint,
                writing: None,
                completed: Vec::new(),
                next_prune_ms: 0,
                held: Heartbeats::new(),
                evaluations: Evaluations::new(config.eval_interval, config.num_steps, config.eval_at_start),
                oldest_steps: BTreeMap::new(),
                bases: BTreeMap::new(),
                first_step: 0,
                wants_save: false,
                is_draining: false,
                config,
                #[cfg(test)]
                fault: crate::simulator::Fault::None,
            });
        }
    }

    /// The trainer's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Training steps done on this line.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The state is loaded.
    pub fn on_loaded(&mut self) {
        self.phase = Phase::MustSave;
        #[cfg(test)]
        if self.fault == crate::simulator::Fault::TrainTwice {
            self.version = self.version.saturating_sub(1);
        }
    }

    /// The checkpoint is gone: a successor pruned it, and the next poll says so.
    pub fn on_load_failed(&mut self) {
        self.phase = Phase::LoadFailed;
    }

    /// The weights are written or on offer.
    pub fn on_saved(&mut self, publication: Publication) {
        self.phase = Phase::MustPublish(Box::new(publication));
    }

    /// The step is trained.
    pub fn on_trained(&mut self) {
        self.version += 1;
        self.phase = if self.is_published(self.version) { Phase::MustSave } else { Phase::Waiting };
    }

    /// Ends at the next step boundary, with a checkpoint of what it has published.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    fn is_published(&self, version: u64) -> bool {
        version.is_multiple_of(self.config.publish_interval) || version == self.config.num_steps
    }

    fn place(&self) -> Physical {
        Physical { version: self.version, epoch: self.epoch }
    }

    /// One round: at most one piece of work for the driver.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Vec<TrainerAction>> {
        self.check_fence(store)?;
        if self.phase == Phase::LoadFailed {
            let parent = self.lineage.epoch(self.epoch).and_then(|record| record.parent);
            let place = Physical { version: self.version, epoch: parent.unwrap_or(0) };
            let problem = "it was chosen at the start and is not there any more".to_owned();
            return Err(Error::Broken { path: paths::checkpoint(place), problem });
        }
        if store.now_ms() >= self.next_beat_ms {
            self.beat.version = Some(self.version);
            self.beat.beat(store, paths::TRAINER)?;
            self.next_beat_ms = store.now_ms() + self.config.beat_ms;
        }
        if let Phase::MustPublish(publication) = &self.phase {
            // The name carries the epoch, so a lost race is an earlier try of this same trainer.
            store.commit(&paths::version(self.place()), &to_json(&**publication))?;
            self.bases.insert(self.place(), prune::base_of(publication));
            self.phase = if self.is_checkpoint_due() { Phase::MustCheckpoint } else { Phase::Waiting };
        }
        self.complete_checkpoint(store)?;
        self.next_action(store)
    }

    /// Errs with [`Error::Fenced`] when a newer epoch can be seen.
    fn check_fence(&mut self, store: &mut dyn Store) -> Result<()> {
        self.lineage.refresh_epochs(store)?;
        #[cfg(test)]
        if self.fault == crate::simulator::Fault::SkipFencing {
            return Ok(());
        }
        match self.lineage.living().filter(|living| *living > self.epoch) {
            Some(newer) => Err(Error::Fenced { owner: paths::TRAINER.into(), mine: self.epoch, newer }),
            None => Ok(()),
        }
    }

    fn next_action(&mut self, store: &mut dyn Store) -> Result<Vec<TrainerAction>> {
        let action = match self.phase {
            Phase::Starting => {
                let record = self.lineage.epoch(self.epoch);
                let parent = record.and_then(|record| record.parent);
                let checkpoint = parent.map(|epoch| Physical { version: self.version, epoch });
                self.phase = Phase::Loading;
                TrainerAction::Load { checkpoint }
            }
            Phase::MustSave => {
                let readable = self.readable(store)?;
                self.phase = Phase::Saving;
                let is_whole = self.is_kept(self.version) || self.version == self.config.num_steps;
                TrainerAction::SaveWeights { place: self.place(), is_whole, readable }
            }
            Phase::MustCheckpoint if self.writing.is_some() => return Ok(Vec::new()),
            Phase::MustCheckpoint => {
                let needs = self.needed(store)?;
                self.phase = Phase::Waiting;
                TrainerAction::SaveCheckpoint { place: self.begin_checkpoint(), needs }
            }
            Phase::Waiting => {
                let control = Control::read(store)?;
                #[cfg(test)]
                let control = Control {
                    is_paused: control.is_paused && self.fault != crate::simulator::Fault::IgnorePause,
                    ..control
                };
                self.is_draining |= control.is_stopping;
                self.wants_save |= control.is_saving;
                if self.is_checkpoint_wished() {
                    self.phase = Phase::MustCheckpoint;
                    return self.next_action(store);
                }
                if self.wants_save && self.last_checkpoint == self.version && self.writing.is_none() {
                    store.remove(paths::SAVE)?;
                    self.wants_save = false;
                }
                if store.now_ms() >= self.next_prune_ms {
                    self.prune(store)?;
                    self.next_prune_ms = store.now_ms() + self.config.visibility_ms / PRUNES_PER_VISIBILITY;
                }
                return self.next_step(store, control);
            }
            _ => return Ok(Vec::new()),
        };
        Ok(vec![action])
    }

    fn next_step(&mut self, store: &mut dyn Store, control: Control) -> Result<Vec<TrainerAction>> {
        let is_ending = self.version == self.config.num_steps || self.is_draining;
        if is_ending && self.writing.is_some() {
            return Ok(Vec::new());
        }
        if self.version == self.config.num_steps {
            self.lineage.refresh(store)?;
            let due = self.evaluations.due(store, &self.lineage)?;
            let is_seen = self.lineage.published().any(|place| place == self.place());
            if due.is_some() || !is_seen {
                return Ok(self.drain_due());
            }
            store.commit(paths::DONE, b"{}")?;
            self.phase = Phase::Done;
            return Ok(vec![TrainerAction::Done { is_complete: true }]);
        }
        let drained = self.drain_due();
        if !drained.is_empty() || control.is_paused {
            return Ok(drained);
        }
        let path = paths::manifest(self.version);
        let Some(bytes) = store.read(&path)? else { return Ok(Vec::new()) };
        let manifest: Manifest = from_json(&path, &bytes)?;
        let mut segments = BTreeMap::new();
        for segment in manifest.segments() {
            let Some(bytes) = store.read(&segment.path)? else { return Ok(Vec::new()) };
            verify(&segment.path, &bytes, segment.num_bytes, segment.checksum)?;
            segments.insert(segment.path.clone(), bytes);
        }
        let mut columns = BTreeMap::new();
        for column in manifest.columns() {
            let Some(bytes) = store.read(&column.path)? else { return Ok(Vec::new()) };
            verify(&column.path, &bytes, column.num_bytes, column.checksum)?;
            columns.insert(column.path.clone(), bytes);
        }
        self.oldest_steps.insert(manifest.step, manifest.oldest_step());
        self.phase = Phase::Training;
        Ok(vec![TrainerAction::Train { manifest: Box::new(manifest), segments, columns }])
    }

    /// The end of a trainer that shall drain.
    fn drain_due(&mut self) -> Vec<TrainerAction> {
        if !self.is_draining {
            return Vec::new();
        }
        self.phase = Phase::Done;
        vec![TrainerAction::Done { is_complete: false }]
    }
}
