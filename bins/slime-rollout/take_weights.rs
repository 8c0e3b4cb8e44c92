//! Takes published versions for an engine, and says so; one that cannot be taken leaves the engine with the weights it has.

use std::time::{Duration, Instant};

use serde_json::json;
use slime_cli::{Failure, exit};
use slime_config::{RunConfig, RunDir, SyncTransport, paths};
use slime_exchange::{Physical, Store};
use slime_transport::{Received, Ways};

use crate::failure;

/// Pause before a version is looked at again that was not there, or was refused.
const RETRY: Duration = Duration::from_millis(200);
/// How long the weights may lie on another node: a trainer that moved publishes anew from its own.
const MOVE_PATIENCE: Duration = Duration::from_secs(60);

/// The intake of one engine.
pub struct Intake {
    ways: Ways,
    owner: String,
    /// The version that was not taken last.
    failed: Option<Failed>,
}

struct Failed {
    place: Physical,
    since: Instant,
    tried: Instant,
    /// Why; none where it was not there.
    failure: Option<Failure>,
}

impl Intake {
    /// Of the replica `owner`.
    pub fn new(config: &RunConfig, run_dir: &RunDir, owner: String) -> Self {
        Self { ways: Ways::new(run_dir, &config.sync), owner, failed: None }
    }

    /// Whether a version that could not be taken shall be left alone for the moment.
    pub fn is_waiting_for(&self, place: Physical) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.place == place && failed.tried.elapsed() < RETRY)
    }

    /// The weights of a version, verified; none where they are not there.
    pub fn take(&mut self, store: &mut dyn Store, place: Physical) -> Result<Option<Received>, Failure> {
        self.ways.receive(store, place).map_err(failure!())
    }

    /// A version was not there: it was pruned, or is not visible yet.
    pub fn missed(&mut self, place: Physical) {
        if self.fail(place, None) {
            tracing::warn!("weights {place} are not there");
        }
    }

    /// A version is broken or out of reach. While the engine `is_busy` it goes on with the weights it has, which are complete;
    /// else there is nothing that it could do.
    ///
    /// # Errors
    /// `failure`, when nothing is to be done without the version.
    pub fn refused(&mut self, place: Physical, failure: Failure, is_busy: bool) -> Result<(), Failure> {
        let (is_broken, is_away) = (failure.code == exit::DATA, failure.code == exit::UNAVAILABLE);
        let since = self.failed.as_ref().filter(|failed| failed.place == place).map(|failed| failed.since);
        let is_patient = is_away && since.is_none_or(|since| since.elapsed() < MOVE_PATIENCE);
        if !(is_patient || is_broken && is_busy) {
            return Err(failure);
        }
        let message = failure.message.clone();
        if self.fail(place, Some(failure)) {
            tracing::error!("weights {place} are not taken: {message}; going on with those that are loaded");
        }
        Ok(())
    }

    /// Remembers a version that was not taken; whether there is something to tell about it.
    fn fail(&mut self, place: Physical, failure: Option<Failure>) -> bool {
        let tried = Instant::now();
        let before = self.failed.take().filter(|failed| failed.place == place);
        let is_told = before.as_ref().is_some_and(|before| before.failure == failure);
        let since = before.map_or(tried, |before| before.since);
        self.failed = Some(Failed { place, since, tried, failure });
        !is_told
    }

    /// The engine holds a version now: says which weights they are, for people and `slime-sync verify`.
    pub fn taken(
        &mut self,
        store: &mut dyn Store,
        place: Physical,
        received: &Received,
        elapsed: Duration,
    ) -> Result<(), Failure> {
        self.failed = None;
        let text = json!({
            "version": place.version,
            "epoch": place.epoch,
            "hash": received.hash,
            "transport": received.transport.as_str(),
            "seconds": elapsed.as_secs_f64(),
        });
        store.hint(&paths::acknowledgement(&self.owner), text.to_string().as_bytes()).map_err(failure!())
    }
}

/// Servers read versions from the run directory.
///
/// # Errors
/// The run sends them another way.
pub fn check_servers(config: &RunConfig) -> Result<(), Failure> {
    if config.sync.transport == SyncTransport::Disk {
        return Ok(());
    }
    let name = config.sync.transport.as_str();
    Err(Failure::usage(format!("--engine: servers read versions from disk, and sync.transport is {name}")))
}

#[cfg(test)]
mod tests {
    use slime_exchange::FsStore;

    use super::*;

    fn intake() -> (tempfile::TempDir, FsStore, Intake) {
        let dir = tempfile::tempdir().unwrap();
        let store = FsStore::open(dir.path()).unwrap();
        let intake = Intake::new(&RunConfig::default(), &RunDir::new(dir.path()), "replica.0".to_owned());
        (dir, store, intake)
    }

    const PLACE: Physical = Physical { version: 3, epoch: 1 };

    #[test]
    fn a_broken_version_ends_an_idle_engine_and_leaves_a_busy_one_at_work() {
        let (_dir, _store, mut intake) = intake();
        let broken = || Failure::data("chunk 0: expected checksum 1, got 2");
        assert!(!intake.is_waiting_for(PLACE));
        intake.refused(PLACE, broken(), true).unwrap();
        assert!(intake.is_waiting_for(PLACE) && !intake.is_waiting_for(Physical { version: 4, epoch: 1 }));
        assert!(!intake.fail(PLACE, Some(broken())), "it is told once");
        assert_eq!(intake.refused(PLACE, broken(), false).unwrap_err(), broken());
        // What tore the engine's weights is no matter of the version.
        let torn = Failure::new(exit::IO, "torn");
        assert_eq!(intake.refused(PLACE, torn.clone(), true).unwrap_err(), torn);
    }

    #[test]
    fn weights_on_another_node_are_waited_for() {
        let (_dir, _store, mut intake) = intake();
        let away = || Failure::new(exit::UNAVAILABLE, "expected to run on far");
        intake.refused(PLACE, away(), false).unwrap();
        intake.refused(PLACE, away(), false).unwrap();
        intake.failed.as_mut().unwrap().since -= MOVE_PATIENCE;
        assert_eq!(intake.refused(PLACE, away(), false).unwrap_err(), away());
    }

    #[test]
    fn what_is_taken_is_acknowledged() {
        let (dir, mut store, mut intake) = intake();
        intake.missed(PLACE);
        let received = Received { dir: "w".into(), transport: SyncTransport::Delta, hash: 77 };
        intake.taken(&mut store, PLACE, &received, Duration::from_millis(250)).unwrap();
        assert!(!intake.is_waiting_for(PLACE));
        let text = std::fs::read(dir.path().join("sync/replica.0.json")).unwrap();
        let told: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            told,
            json!({"version": 3, "epoch": 1, "hash": 77, "transport": "delta", "seconds": 0.25})
        );
    }

    #[test]
    fn servers_are_told_of_versions_on_disk_only() {
        let mut config = RunConfig::default();
        check_servers(&config).unwrap();
        config.sync.transport = SyncTransport::Shm;
        let failure = check_servers(&config).unwrap_err();
        assert_eq!(failure.code, 64);
        assert!(failure.message.ends_with("sync.transport is shm"), "{}", failure.message);
    }
}
