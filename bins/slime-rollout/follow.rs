//! Stays with a run: polls the step builder, the replica or both until the run is done or drained.

use std::path::Path;
use std::time::Duration;

use slime_cli::{Failure, drain};
use slime_config::{RunDir, paths};
use slime_exchange::{Error, FsStore, Store, refuse_second};

use crate::args::Once;
use crate::build_steps::Builder;
use crate::failure;
use crate::replicate::{BEAT_MS, Replicator};

/// Pause between polls when there is nothing to compute.
const IDLE: Duration = Duration::from_millis(20);

/// `slime-rollout --follow RUN`.
pub fn follow(run: &Path, args: &Once) -> Result<(), Failure> {
    drain::install();
    let run_dir = RunDir::new(run);
    let config = slime_config::load(Some(&run_dir.run_toml()), &args.settings.sets).map_err(failure!())?;
    let mut store = FsStore::open(run).map_err(failure!())?;
    let resident = &args.resident;
    if !resident.takeover {
        let replica = paths::replica(resident.replica.unwrap_or(0));
        let owners = [(resident.replica.is_none(), paths::BUILDER), (!resident.builder, replica.as_str())];
        for (_, owner) in owners.into_iter().filter(|(is_mine, _)| *is_mine) {
            refuse_second(&mut store, owner, Duration::from_millis(BEAT_MS)).map_err(failure!())?;
        }
    }
    let mut builder = match resident.replica {
        None => Some(Builder::start(&mut store, &config, &run_dir)?),
        Some(_) => None,
    };
    let mut replicator = match (resident.builder, resident.replica.unwrap_or(0)) {
        (true, _) => None,
        (false, index) => Some(Replicator::start(&mut store, &config, &run_dir, index)?),
    };
    let mut is_drained = false;
    loop {
        if !is_drained && (drain::requested() || store.exists(paths::STOP).map_err(failure!())?) {
            is_drained = true;
            builder.iter_mut().for_each(Builder::drain);
            replicator.iter_mut().for_each(Replicator::drain);
        }
        let mut is_done = true;
        let mut is_busy = false;
        if let Some(builder) = &mut builder {
            is_done &= builder.poll(&mut store)?;
            is_busy |= builder.is_busy();
        }
        if let Some(replicator) = &mut replicator {
            is_done &= replicator.poll(&mut store)?;
            is_busy |= replicator.is_busy();
        }
        if is_done {
            break;
        }
        if !is_busy {
            std::thread::sleep(IDLE);
        }
    }
    if is_drained { Err(Failure::drained("stopped between steps; start again to go on")) } else { Ok(()) }
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
