//! One simulated process: a machine, its store, and the work its driver has under way.

use std::cell::RefCell;
use std::rc::Rc;

use rand::Rng;
use slime_config::paths;
use slime_record::{SampleId, VersionRun};
use xxhash_rust::xxh3::xxh3_64;

use super::Fault;
use super::files::{SimFiles, Stop, VISIBILITY_MS, World};
use super::format::{SimFormat, SimPolicy};
use super::oracle::Oracle;
use super::plan::Plan;
use super::unfinished::Before;
use super::weights::{Sender, forget, keep, take};
use crate::{
    BuilderAction, ColumnRow, Error, Format, Physical, Replica, ReplicaAction, Result, RewardAction,
    RewardWorker, SampleDigest, SealedStore, StepBuilder, Store, Trainer, TrainerAction,
};

/// Which owner a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Builder,
    Trainer,
    Replica(u32),
    Reward(u32),
}

#[derive(Clone)]
enum Machine {
    Builder(Box<StepBuilder<SimFormat>>),
    Trainer(Box<Trainer>),
    Replica(Box<Replica<SimFormat>>),
    Reward(Box<RewardWorker<SimFormat>>),
}

/// Work of the driver that ends at its time.
#[derive(Clone)]
enum Work {
    Evaluated(Physical),
    Load(Option<Physical>),
    Save(Physical, bool),
    /// Versions to put on disk.
    Keep(Vec<Physical>),
    Trained(u64),
    /// The place, and the consumed steps at the moment of the copy.
    Checkpoint(Physical, Vec<u64>),
    Swap(Physical),
    Generated {
        step: u64,
        group: u32,
        attempt: u32,
        prompt: String,
        version: u64,
        before: Before,
    },
    Scored(String, Vec<ColumnRow>),
}

/// How a turn of a process ended.
#[derive(Debug)]
pub(super) enum Turn {
    Alive,
    Frozen,
    Gone,
    Finished,
}

pub(super) struct Process {
    pub role: Role,
    pub frozen_until: Option<u64>,
    is_drained: bool,
    machine: Machine,
    store: SealedStore<SimFiles>,
    files: SimFiles,
    works: Vec<(u64, Work)>,
    /// Actions that polls gave and pieces of work that were handed in.
    num_events: u64,
    /// Steps whose training is in the trainer's weights.
    consumed: Vec<u64>,
    sender: Sender,
    engine: Option<Physical>,
}

impl Process {
    /// Starts the owner's next incarnation; none when it died while starting.
    pub fn start(world: &Rc<RefCell<World>>, id: u32, role: Role, plan: &Plan) -> Result<Option<Self>> {
        let files = SimFiles::new(world, id);
        files.begin();
        let mut store = SealedStore::over(files.clone(), format!("{id}"));
        let machine = match role {
            Role::Builder => StepBuilder::start(&mut store, plan.builder.clone(), SimFormat).map(|mut m| {
                m.owner.fault = plan.fault;
                Machine::Builder(Box::new(m))
            }),
            Role::Trainer => Trainer::start(&mut store, plan.trainer.clone()).map(|mut m| {
                m.fault = plan.fault;
                Machine::Trainer(Box::new(m))
            }),
            Role::Replica(index) => {
                Replica::start(&mut store, plan.replica(index), SimFormat).map(|mut m| {
                    m.owner.fault = plan.fault;
                    Machine::Replica(Box::new(m))
                })
            }
            Role::Reward(index) => {
                RewardWorker::start(&mut store, plan.reward(index), SimFormat).map(|mut m| {
                    m.owner.fault = plan.fault;
                    Machine::Reward(Box::new(m))
                })
            }
        };
        match machine {
            Ok(machine) => Ok(Some(Self {
                role,
                frozen_until: None,
                is_drained: false,
                machine,
                store,
                files,
                works: Vec::new(),
                num_events: 0,
                consumed: Vec::new(),
                sender: Sender::default(),
                engine: None,
            })),
            Err(error) if files.stopped().is_some() || is_survivable(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One turn: what is done is handed in, then the machine is polled.
    pub fn turn(&mut self, world: &Rc<RefCell<World>>, plan: &Plan, oracle: &mut Oracle) -> Result<Turn> {
        let is_thawed = self.frozen_until.take().is_some();
        if is_thawed {
            self.files.thaw();
        } else {
            self.files.begin();
            if !self.hand_in(world, plan)? {
                return Ok(Turn::Gone);
            }
            self.files.begin();
        }
        let before = (self.machine.clone(), self.store.clone());
        let num_trained = self.num_in_training();
        let outcome = self.poll(world, plan, oracle);
        match self.files.stopped() {
            Some(Stop::Frozen) => {
                (self.machine, self.store) = before;
                return Ok(Turn::Frozen);
            }
            Some(Stop::Killed) => return Ok(Turn::Gone),
            None => {}
        }
        if outcome.is_ok() && !is_thawed {
            let slack_ms = if self.files.has_changed() { 0 } else { plan.builder.beat_ms };
            self.check_fenced(&world.borrow(), slack_ms);
            let is_seen = |path| {
                let created_ms = world.borrow().created_ms(path);
                created_ms.is_some_and(|ms| world.borrow().now_ms > ms + VISIBILITY_MS)
            };
            let now_ms = world.borrow().now_ms;
            let trains_more = self.num_in_training() > num_trained;
            assert!(!(trains_more && is_seen(paths::PAUSE)), "{now_ms} ms: a step is trained in a pause");
            let is_over = self.role == Role::Trainer && matches!(outcome, Ok(true)) && !self.is_drained;
            assert!(!(is_over && is_seen(paths::SAVE)), "{now_ms} ms: the run ends with an unheard wish");
        }
        match outcome {
            Ok(is_done) => Ok(if is_done { Turn::Finished } else { Turn::Alive }),
            Err(error) if error.is_transient() => Ok(Turn::Alive),
            Err(error) if is_survivable(&error) => Ok(Turn::Gone),
            Err(error) => Err(error),
        }
    }

    /// Asks the owner to end in good order.
    pub fn drain(&mut self) {
        self.is_drained = true;
        match &mut self.machine {
            Machine::Builder(builder) => builder.drain(),
            Machine::Trainer(trainer) => trainer.drain(),
            Machine::Replica(replica) => replica.drain(),
            Machine::Reward(worker) => worker.drain(),
        }
    }

    /// When its next piece of work is done, if it has one.
    pub fn next_work_ms(&self) -> Option<u64> {
        self.works.iter().map(|(at, _)| *at).min()
    }

    /// Grows whenever the tool counts as not idle.
    pub fn num_events(&self) -> u64 {
        self.num_events
    }

    fn num_in_training(&self) -> usize {
        self.works.iter().filter(|(_, work)| matches!(work, Work::Trained(_))).count()
    }

    /// After a whole poll: nobody changes anything once its successor can be seen, and ends within `slack_ms`.
    fn check_fenced(&self, world: &World, slack_ms: u64) {
        let (dir, mine) = match &self.machine {
            Machine::Builder(builder) => (paths::owner(&builder.owner.name), builder.owner.incarnation),
            Machine::Trainer(trainer) => (paths::EPOCHS.to_owned(), trainer.epoch()),
            Machine::Replica(replica) => (paths::owner(&replica.owner.name), replica.owner.incarnation),
            Machine::Reward(worker) => (paths::owner(&worker.owner.name), worker.owner.incarnation),
        };
        if let Some(since_ms) = world.superseded_ms(&dir, mine) {
            let is_hidden = world.now_ms < since_ms + VISIBILITY_MS + slack_ms;
            assert!(is_hidden, "{dir}: {mine} goes on after its successor started at {since_ms} ms");
        }
    }

    fn hand_in(&mut self, world: &Rc<RefCell<World>>, plan: &Plan) -> Result<bool> {
        let now_ms = world.borrow().now_ms;
        // A replica that has stopped generates nothing.
        let is_stopped = matches!(&self.machine, Machine::Replica(replica) if replica.is_stopped());
        let is_due = |(at, work): &(u64, Work)| {
            *at <= now_ms && !(is_stopped && matches!(work, Work::Generated { .. }))
        };
        let (due, later) = std::mem::take(&mut self.works).into_iter().partition(is_due);
        self.works = later;
        let due: Vec<(u64, Work)> = due;
        for (_, work) in due {
            self.num_events += 1;
            let outcome = self.finish(work, world, plan);
            match outcome {
                Err(error) if self.files.stopped().is_some() || is_survivable(&error) => return Ok(false),
                outcome => outcome?,
            }
        }
        Ok(true)
    }

    fn finish(&mut self, work: Work, world: &Rc<RefCell<World>>, plan: &Plan) -> Result<()> {
        match (&mut self.machine, work) {
            (Machine::Builder(builder), Work::Evaluated(place)) => {
                if take(&mut self.store, world, place)? {
                    builder.on_evaluated(place);
                } else {
                    builder.on_evaluation_missed(place);
                }
            }
            (Machine::Trainer(trainer), Work::Load(checkpoint)) => {
                self.consumed = match checkpoint {
                    None => Vec::new(),
                    Some(place) => {
                        let state = Oracle::state(&world.borrow(), place);
                        // Only a successor may prune it: the next poll then ends as fenced, else as broken.
                        let Some(state) = state else {
                            trainer.on_load_failed();
                            return Ok(());
                        };
                        state
                    }
                };
                trainer.on_loaded();
            }
            (Machine::Trainer(trainer), Work::Save(place, is_whole)) => {
                let what = (place, is_whole);
                trainer.on_saved(self.sender.save(&mut self.store, world, plan.way, what, &self.consumed)?);
            }
            (Machine::Trainer(_), Work::Keep(needs)) => keep(&mut self.store, world, &needs)?,
            (Machine::Trainer(trainer), Work::Trained(step)) => {
                self.consumed.push(step);
                Oracle::check_consumed(&self.consumed);
                trainer.on_trained();
            }
            (Machine::Trainer(trainer), Work::Checkpoint(place, consumed)) => {
                let bytes = serde_json::to_vec(&consumed).expect("numbers");
                self.store.seal(&format!("{}/state", paths::checkpoint(place)), &bytes)?;
                trainer.on_checkpointed(Oracle::mark(&bytes));
            }
            (Machine::Replica(replica), Work::Swap(place)) => {
                if take(&mut self.store, world, place)? {
                    self.engine = Some(place);
                    replica.on_loaded(place);
                } else {
                    replica.on_load_failed();
                }
            }
            (
                Machine::Replica(replica),
                Work::Generated { step, group, attempt, prompt, version, before },
            ) => {
                let newer = self.engine.map(|place| place.version).filter(|now| *now != version);
                let rows = (0..SimPolicy::num_samples(&prompt)).map(|index| {
                    let mut trained = before.of(index);
                    trained.push(VersionRun { version, len: 3 });
                    trained.extend(newer.map(|version| VersionRun { version, len: 2 }));
                    SampleDigest {
                        id: SampleId { step, group, index, attempt, part: before.part },
                        prompt_id: prompt.clone(),
                        tokens_hash: xxh3_64(format!("{step}/{group}/{index}").as_bytes()),
                        // One token that is never trained.
                        response_len: 1 + trained.iter().map(|run| run.len).sum::<u32>(),
                        trained,
                        failed: world.borrow_mut().rng.random_ratio(1, 100),
                        truncated: false,
                    }
                });
                replica.on_finished(step, group, attempt, rows.collect());
            }
            (Machine::Reward(worker), Work::Scored(segment, rows)) => worker.on_scored(segment, rows),
            _ => unreachable!("work goes back to the machine that asked for it"),
        }
        Ok(())
    }

    fn poll(&mut self, world: &Rc<RefCell<World>>, plan: &Plan, oracle: &mut Oracle) -> Result<bool> {
        let mut is_done = false;
        let add = |works: &mut Vec<(u64, Work)>, longest: u64, work| {
            let mut world = world.borrow_mut();
            let longest = longest * plan.pace;
            let longest = if world.rng.random_ratio(1, 20) { longest * 5 } else { longest };
            let at = world.now_ms + world.rng.random_range(1..=longest);
            works.push((at, work));
        };
        match &mut self.machine {
            Machine::Builder(builder) => {
                let mut policy = plan.policy();
                for action in builder.poll(&mut self.store, &mut policy)? {
                    self.num_events += 1;
                    match action {
                        BuilderAction::Committed { .. } => {}
                        BuilderAction::Evaluate { place } => add(&mut self.works, 60, Work::Evaluated(place)),
                        BuilderAction::Done => is_done = true,
                    }
                }
            }
            Machine::Trainer(trainer) => {
                for action in trainer.poll(&mut self.store)? {
                    self.num_events += 1;
                    match action {
                        TrainerAction::Load { checkpoint } => {
                            add(&mut self.works, 20, Work::Load(checkpoint));
                        }
                        TrainerAction::SaveWeights { place, is_whole, readable } => {
                            forget(&mut world.borrow_mut(), place.epoch, &readable);
                            add(&mut self.works, 20, Work::Save(place, is_whole));
                        }
                        TrainerAction::Train { manifest, segments, columns } => {
                            oracle.check_trained(plan, &manifest, &segments, &columns);
                            add(&mut self.works, 40, Work::Trained(manifest.step));
                        }
                        TrainerAction::SaveCheckpoint { place, needs } => {
                            // At once, before anything else is published.
                            let is_kept = plan.fault != Fault::LeaveInMemory;
                            self.works.extend(is_kept.then_some((0, Work::Keep(needs))));
                            // Takes as long as several steps now and then.
                            add(&mut self.works, 60, Work::Checkpoint(place, self.consumed.clone()));
                        }
                        TrainerAction::Done { is_complete } => {
                            let is_asked = self.is_drained || world.borrow().truth(paths::STOP).is_some();
                            assert!(is_complete || is_asked, "nobody asked for a drain");
                            if is_complete {
                                oracle.check_end(plan, &self.consumed);
                            }
                            self.is_drained |= !is_complete;
                            is_done = true;
                        }
                    }
                }
            }
            Machine::Replica(replica) => {
                let mut is_surrendered = false;
                for action in replica.poll(&mut self.store)? {
                    self.num_events += 1;
                    match action {
                        ReplicaAction::Prepare { .. } => {}
                        ReplicaAction::Load { place } => add(&mut self.works, 20, Work::Swap(place)),
                        ReplicaAction::Generate { step, group, attempt, prompt, version, parts } => {
                            let prompt = prompt.as_str().unwrap_or_default().to_owned();
                            let before = Before::read(&mut self.store, parts, (step, group));
                            let work = Work::Generated { step, group, attempt, prompt, version, before };
                            add(&mut self.works, 60, work);
                        }
                        ReplicaAction::Cancel { step, group, attempt } => self.works.retain(|(_, work)| {
                            !matches!(work, Work::Generated { step: s, group: g, attempt: a, .. }
                                if (*s, *g, *a) == (step, group, attempt))
                        }),
                        ReplicaAction::Surrender => is_surrendered = true,
                        ReplicaAction::Done => is_done = true,
                    }
                }
                if is_surrendered {
                    replica.on_unfinished(unfinished(&mut self.works));
                }
            }
            Machine::Reward(worker) => {
                for action in worker.poll(&mut self.store)? {
                    self.num_events += 1;
                    match action {
                        RewardAction::Score { segment, bytes } => {
                            let rows = SimFormat.digest(&bytes)?.rows;
                            let is_foreign = world.borrow_mut().is_first_mistake(&segment);
                            let row = |row: &SampleDigest| ColumnRow {
                                id: row.id,
                                tokens_hash: row.tokens_hash ^ u64::from(is_foreign),
                                value: 1.0,
                                details: None,
                            };
                            let rows = rows.iter().map(row).collect();
                            add(&mut self.works, 20, Work::Scored(segment, rows));
                        }
                        RewardAction::Done => is_done = true,
                    }
                }
            }
        }
        Ok(is_done)
    }
}

/// What a replica has under way, with a token more for each sample; all other work is lost.
fn unfinished(works: &mut Vec<(u64, Work)>) -> Vec<(u64, u32, u32, Vec<SampleDigest>)> {
    let groups = works.drain(..).filter_map(|(_, work)| match work {
        Work::Generated { step, group, attempt, prompt, version, before } => {
            let id = SampleId { step, group, attempt, ..SampleId::default() };
            Some((step, group, attempt, before.one_more(id, &prompt, version)))
        }
        _ => None,
    });
    groups.collect()
}

/// Errors after which an owner is simply started again.
fn is_survivable(error: &Error) -> bool {
    matches!(error, Error::Stale { .. } | Error::Full { .. } | Error::Fenced { .. } | Error::Io { .. })
}
