//! The resident trainer: one training step for each committed manifest, until the run is over.
//!
//! Rank 0 drives the machine of `slime_exchange` and hands the work to the other ranks, which sleep meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use slime_checkpoint::Writer;
use slime_cli::watchdog::{Section, enter};
use slime_cli::{Failure, drain};
use slime_comm::Communicator;
use slime_config::{RunConfig, RunDir, paths};
use slime_exchange::{FsStore, Idle, Physical, Store, TrainerAction, TrainerConfig, refuse_second};
use slime_trainer::{Scored, StepMetrics, Trainer};
use slime_transport::Ways;
use slime_weights::Quantiser;

use crate::observe::{Observer, Trained};
use crate::read_manifest::read_manifest;
use crate::share::share;
use crate::write_metrics::Times;
use crate::write_version::{Wanted, write_version};
use crate::write_weights::send_weights;
use crate::{checkpoint, failure};

/// Time between heartbeats.
const BEAT_MS: u64 = 2000;
/// How often rank 0 tells the waiting others that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Twice the longest time a name may stay invisible to another node.
const VISIBILITY_MS: u64 = 60_000;

/// How a trainer starts.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Although another seems to be alive.
    pub takeover: bool,
    /// From the checkpoint of this version instead of the newest.
    pub resume: Option<u64>,
}

/// What all ranks do together.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Work {
    /// The epoch is claimed.
    Begin {
        epoch: u64,
    },
    Load(PathBuf),
    Train {
        step: u64,
        samples: Vec<Scored>,
    },
    Checkpoint {
        dir: PathBuf,
        place: Physical,
    },
    /// Rank 0 writes a version of a split model.
    SendWeights,
    /// Rank 0 lives.
    Nothing,
    #[default]
    Done,
}

impl Work {
    fn section(&self) -> Section {
        match self {
            Self::Load(_) | Self::Checkpoint { .. } | Self::SendWeights => Section::Checkpoint,
            Self::Train { .. } => Section::Step,
            Self::Begin { .. } | Self::Nothing | Self::Done => Section::Wait,
        }
    }
}

/// The machine's settings from the configuration.
fn machine_config(config: &RunConfig, resume: Option<u64>) -> Result<TrainerConfig, Failure> {
    Ok(TrainerConfig {
        num_steps: config.num_steps(None).map_err(failure!())?,
        publish_interval: config.run.publish_interval,
        max_staleness: config.run.max_staleness,
        checkpoint_interval: config.checkpoint.interval,
        keep_checkpoints: config.checkpoint.keep_last as usize,
        keep_weights_every: config.checkpoint.keep_hf_every,
        resume,
        visibility_ms: VISIBILITY_MS,
        eval_interval: config.eval_interval(),
        eval_at_start: config.evaluates_at_start(),
        num_replicas: config.rollout.num_replicas,
        beat_ms: BEAT_MS,
    })
}

/// Trains until the run in `run` is over or this process is asked to drain.
///
/// # Errors
/// Those of the store, of the samples and of training. A drained run ends with 75 in a world of one rank.
pub fn follow(
    run: &Path,
    config: &RunConfig,
    start: Start,
    trainer: &mut Trainer,
    comm: &Arc<dyn Communicator>,
    observer: &mut Observer,
) -> Result<(), Failure> {
    let mut crew = Crew { trainer, comm: &**comm, observer, writer: checkpoint::writer() };
    if comm.rank() == 0 {
        return lead(run, config, start, &mut crew);
    }
    loop {
        enter(Section::Wait);
        comm.barrier().map_err(failure!())?;
        match share(Work::Done, &**comm)? {
            Work::Done => return crew.writer.wait().map(|_| ()).map_err(failure!()),
            work => {
                if let Work::Train { step, .. } = &work {
                    crew.observer.step_came(*step);
                }
                crew.perform(work)?;
            }
        }
    }
}

/// Rank 0.
fn lead(run: &Path, config: &RunConfig, start: Start, crew: &mut Crew<'_>) -> Result<(), Failure> {
    let comm = crew.comm;
    let mut store = FsStore::open(run).map_err(failure!())?;
    if !start.takeover {
        refuse_second(&mut store, paths::TRAINER, Duration::from_millis(BEAT_MS)).map_err(failure!())?;
    }
    let mut machine = slime_exchange::Trainer::start(&mut store, machine_config(config, start.resume)?)
        .map_err(failure!())?;
    let num_steps = config.num_steps(None).map_err(failure!())?;
    tracing::info!("epoch {}, continuing at version {} of {num_steps}", machine.epoch(), machine.version());
    crew.give(Work::Begin { epoch: machine.epoch() })?;
    let mut ways = Ways::new(&RunDir::new(run), &config.sync);
    let mut idle = Idle::default();
    let mut told = Instant::now();
    loop {
        enter(Section::Wait);
        if drain::requested() {
            machine.drain();
        }
        idle.begin();
        if let Some(dir) = crew.writer.poll().map_err(failure!())? {
            machine.on_checkpointed(slime_checkpoint::mark(&dir).map_err(failure!())?);
            crew.observer.wrote_model();
        }
        let actions = match machine.poll(&mut store) {
            Err(error) if error.is_transient() => Vec::new(),
            polled => polled.map_err(failure!())?,
        };
        idle.polled();
        if actions.is_empty() {
            if comm.size() > 1 && told.elapsed() >= KEEP_ALIVE {
                crew.give(Work::Nothing)?;
                told = Instant::now();
            }
            idle.sleep();
            continue;
        }
        for action in actions {
            match action {
                TrainerAction::Load { checkpoint } => {
                    let dir = checkpoint.map(|place| run.join(paths::checkpoint(place)));
                    if dir.as_ref().is_some_and(|dir| !dir.exists()) {
                        machine.on_load_failed();
                        continue;
                    }
                    if let Some(dir) = dir {
                        crew.give(Work::Load(dir))?;
                    }
                    machine.on_loaded();
                }
                TrainerAction::SaveWeights { place, is_whole, readable } => {
                    enter(Section::Checkpoint);
                    let (began, origin) = (Instant::now(), Path::new(&config.model.path));
                    if crew.trainer.policy().params().parallel().is_some() {
                        crew.give(Work::SendWeights)?;
                    }
                    let quantiser = config.rollout.weights.as_ref().map(Quantiser::from);
                    let wanted = Wanted { place, is_whole, readable, quantiser };
                    let policy = crew.trainer.policy();
                    let publication = write_version(ways.sender(), wanted, policy, origin)?;
                    crew.observer.updated_weights(place.version, publication.num_bytes, began);
                    machine.on_saved(publication);
                }
                TrainerAction::Train { manifest, segments, columns } => {
                    crew.observer.step_came(manifest.step);
                    let began = Instant::now();
                    let scored = read_manifest(&manifest, &segments, &columns, &config.algorithm)?;
                    let read = began.elapsed();
                    if let Some(trained) = crew.give(Work::Train { step: manifest.step, samples: scored })? {
                        let times = crew.observer.tell(&manifest, &trained, began, read)?;
                        report(manifest.step, num_steps, &trained.steps, times);
                    }
                    machine.on_trained();
                }
                TrainerAction::SaveCheckpoint { place, needs } => {
                    for needed in needs {
                        ways.sender().keep(needed).map_err(failure!())?;
                    }
                    let path = paths::checkpoint(place);
                    // What a killed try under the same name left behind is not part of this one.
                    store.remove(&path).map_err(failure!())?;
                    crew.give(Work::Checkpoint { dir: run.join(path), place })?;
                }
                TrainerAction::Done { is_complete } => {
                    crew.give(Work::Done)?;
                    ways.end(machine.epoch()).map_err(failure!())?;
                    return end(is_complete, comm);
                }
            }
        }
        idle.end();
    }
}

fn report(step: u64, num_steps: u64, steps: &[StepMetrics], times: Times) {
    let num = steps.iter().filter(|step| !step.is_skipped).count().max(1) as f64;
    let mean =
        |of: fn(&StepMetrics) -> f64| steps.iter().filter(|step| !step.is_skipped).map(of).sum::<f64>() / num;
    let rewards: Vec<f64> = steps.iter().filter_map(|step| step.reward_mean).collect();
    let reward = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64);
    tracing::info!(
        "step {step} ({} of {num_steps}):{} loss {:.3e}, grad norm {:.3}, {:.1} s of which training {:.1} s",
        step + 1,
        reward.map(|reward| format!(" reward {reward:.3},")).unwrap_or_default(),
        mean(|step| step.loss),
        mean(|step| step.grad_norm),
        (times.wait + times.train).as_secs_f64(),
        times.train.as_secs_f64(),
    );
}

fn end(is_complete: bool, comm: &dyn Communicator) -> Result<(), Failure> {
    if is_complete {
        tracing::info!("all steps are trained");
    } else if comm.size() == 1 {
        return Err(Failure::new(75, "stopped before the last step").with_hint("start again to continue"));
    } else {
        tracing::info!("stopped before the last step");
    }
    Ok(())
}

/// What a rank works with.
struct Crew<'a> {
    trainer: &'a mut Trainer,
    comm: &'a dyn Communicator,
    observer: &'a mut Observer,
    writer: Writer,
}

impl Crew<'_> {
    /// Wakes the other ranks and does the work with them.
    fn give(&mut self, work: Work) -> Result<Option<Trained>, Failure> {
        if self.comm.size() == 1 {
            return self.perform(work);
        }
        // A rank that does not come is as good as one that hangs in the step itself.
        enter(match work.section() {
            Section::Wait => Section::Step,
            section => section,
        });
        self.comm.barrier().map_err(failure!())?;
        let work = share(work, self.comm)?;
        self.perform(work)
    }

    /// One piece of work, on every rank; training returns its numbers.
    fn perform(&mut self, work: Work) -> Result<Option<Trained>, Failure> {
        enter(work.section());
        let began = Instant::now();
        match work {
            Work::Begin { epoch } => self.observer.begin(epoch),
            Work::Load(dir) => checkpoint::load(&dir, self.trainer)?,
            Work::Train { step, samples } => {
                self.trainer.observe(self.observer.observation(step));
                let steps = self.trainer.train_rollout(&samples);
                let steps =
                    steps.inspect_err(|error| self.observer.failed(step, error)).map_err(failure!())?;
                let report = self.trainer.take_report();
                return self.observer.trained(step, steps, report, began, self.comm).map(Some);
            }
            Work::Checkpoint { dir, place } => {
                let snapshot = checkpoint::snapshot(self.trainer, self.comm, place.epoch)?;
                self.writer.submit(dir, snapshot).map_err(failure!())?;
                self.observer.saved_model(place.version, began);
            }
            Work::SendWeights if self.comm.rank() != 0 => send_weights(self.trainer.policy().params())?,
            Work::SendWeights | Work::Nothing | Work::Done => {}
        }
        Ok(None)
    }
}
