//! Stays with a run: polls the step builder, the replica or both until the run is done or drained.

use std::path::Path;
use std::time::{Duration, Instant};

use slime_cli::watchdog::{Section, enter};
use slime_cli::{Failure, drain};
use slime_comm::Placement;
use slime_config::{RunConfig, RunDir, paths};
use slime_exchange::{Error, FsStore, Idle, join_attempt, refuse_second};

use crate::args::Once;
use crate::build_steps::{self, Builder};
use crate::failure;
use crate::ranks;
use crate::replicate::{BEAT_MS, Replicator};

/// `slime-rollout --follow RUN`.
pub fn follow(run: &Path, args: &Once) -> Result<(), Failure> {
    let run_dir = RunDir::new(run);
    let config = slime_config::load(Some(&run_dir.run_toml()), &args.settings.sets).map_err(failure!())?;
    let resident = &args.resident;
    let is_first = Placement::detect().map_err(failure!())?.rank == 0;
    if is_first && resident.replica.is_none() && build_steps::scores(&config) && config.runs_code() {
        // Before the first thread and the first device: the sandbox is forked from what this process is now.
        let min = config.reward.sandbox_min.name();
        let standing = slime_verifier::start_sandbox(min).map_err(failure!())?;
        tracing::info!("{standing}");
    }
    // A builder that is alone, or beside who replays, evaluates with a model of its own, on one rank.
    let is_engine = args.engines.engine.is_empty() && !resident.builder && !config.data.kind.is_recorded();
    ranks::run(&config, is_engine, || stay(run, args, &config))
}

/// On rank 0 of the engine, or where there is no other.
fn stay(run: &Path, args: &Once, config: &RunConfig) -> Result<(), Failure> {
    let (run_dir, resident) = (RunDir::new(run), &args.resident);
    drain::install();
    let role = resident.replica.map_or_else(|| paths::BUILDER.to_owned(), paths::replica);
    join_attempt(&role, &config.watchdog);
    let mut store = FsStore::open(run).map_err(failure!())?;
    if !resident.takeover {
        let replica = paths::replica(resident.replica.unwrap_or(0));
        let owners = [(resident.replica.is_none(), paths::BUILDER), (!resident.builder, replica.as_str())];
        for (_, owner) in owners.into_iter().filter(|(is_mine, _)| *is_mine) {
            refuse_second(&mut store, owner, Duration::from_millis(BEAT_MS)).map_err(failure!())?;
        }
    }
    let mut builder = match resident.replica {
        None => Some(Builder::start(&mut store, config, &run_dir)?),
        Some(_) => None,
    };
    let mut replicator = match (resident.builder, resident.replica.unwrap_or(0)) {
        (true, _) => None,
        (false, index) => {
            let (profile, engines) = (resident.profile, &args.engines);
            Some(Replicator::start(&mut store, config, &run_dir, index, profile, engines)?)
        }
    };
    let mut is_busy = false;
    let mut idle = Idle::default();
    let mut polled = Instant::now();
    loop {
        // A step of the engine takes milliseconds; the metadata server is not asked as often.
        if !is_busy || polled.elapsed() >= idle.busy_pause() {
            idle.begin();
            if drain::requested() {
                builder.iter_mut().for_each(Builder::drain);
                replicator.iter_mut().for_each(Replicator::drain);
            }
            let mut found = Polled { is_done: true, has_acted: false };
            if let Some(builder) = &mut builder {
                found = found.and(builder.poll(&mut store)?);
            }
            if let Some(replicator) = &mut replicator {
                found = found.and(replicator.poll(&mut store)?);
            }
            if found.is_done {
                break;
            }
            polled = Instant::now();
            idle.polled();
            if found.has_acted {
                idle.end();
            }
        }
        is_busy = false;
        if let Some(builder) = &mut builder {
            builder.step(&mut store)?;
            is_busy |= builder.is_busy();
        }
        if let Some(replicator) = &mut replicator {
            replicator.step()?;
            is_busy |= replicator.is_busy();
        }
        if is_busy {
            enter(Section::Step);
            idle.end();
        } else {
            enter(Section::Wait);
            idle.sleep();
        }
    }
    builder.iter().for_each(Builder::finish);
    replicator.iter_mut().try_for_each(Replicator::finish)?;
    let is_drained = builder.as_ref().is_some_and(Builder::is_draining)
        || replicator.as_ref().is_some_and(Replicator::is_draining);
    if is_drained { Err(Failure::drained("stopped between steps; start again to go on")) } else { Ok(()) }
}

/// What a poll of a machine found.
#[derive(Debug, Clone, Copy)]
pub struct Polled {
    /// The run is over, or drained.
    pub is_done: bool,
    /// There was something to do.
    pub has_acted: bool,
}

impl Polled {
    fn and(self, other: Self) -> Self {
        Self { is_done: self.is_done && other.is_done, has_acted: self.has_acted || other.has_acted }
    }
}

/// The actions of a poll; a stale handle means: poll again.
pub fn patient<T>(polled: Result<Vec<T>, Error>) -> Result<Vec<T>, Failure> {
    match polled {
        Err(error) if error.is_transient() => {
            tracing::debug!("{error}; polling again");
            Ok(Vec::new())
        }
        polled => polled.map_err(failure!()),
    }
}
