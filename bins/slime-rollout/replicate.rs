//! The replica's role: generates what the step builder assigned, with the weights it asked for; or replays it, where
//! responses are recorded, without weights.

use std::sync::Arc;
use std::time::Instant;

use slime_cli::Failure;
use slime_config::{Order, Partial, RunConfig, RunDir, paths};
use slime_exchange::{ArrowFormat, Physical, Replica, ReplicaAction, ReplicaConfig, Store};
use slime_metrics::Profile;
use slime_record::Provenance;
use slime_tokenizer::Tokenizer;
use slime_transport::Received;

use crate::args::Engines;
use crate::failure;
use crate::follow::{Polled, patient};
use crate::observe::Observer;
use crate::replay::Replayer;
use crate::sampler::{GroupId, Purpose, Sampler};
use crate::take_weights::{Intake, check_servers};
use crate::tokens_ahead::TokensAhead;
use crate::{read_prompts, read_samples, write_samples};

/// Size at which a segment is sealed.
const SEAL_BYTES: usize = 64 << 20;
/// Least age of the first finished group at which a segment is sealed.
const SEAL_MS: u64 = 500;
/// All replicas together seal at most this many segments a second.
const SEALS_PER_S: u64 = 20;
/// Time between heartbeats.
pub const BEAT_MS: u64 = 2000;

/// A replica: the machine that follows assignments and the engine that generates.
pub struct Replicator {
    machine: Replica<ArrowFormat>,
    sampler: Option<Sampler>,
    /// In place of an engine, where responses are recorded.
    replayer: Option<Replayer>,
    config: RunConfig,
    intake: Intake,
    tokenizer: Arc<Tokenizer>,
    ahead: TokensAhead,
    observer: Observer,
    /// Whether unfinished samples are handed over and taken up; servers keep theirs.
    goes_on: bool,
}

/// Batches of an engine whose groups a replica holds. A group keeps its place until its longest sample has ended: where
/// groups end in any order, so many keep the batch full although most of their samples have ended (`tests/benches/modes`).
const BATCHES_IN_FLIGHT: u32 = 2;
const BATCHES_IN_FLIGHT_ARRIVAL: u32 = 6;

/// Groups that keep an engine's batch full; of recorded ones a step and the next.
pub fn groups_in_flight(config: &RunConfig) -> Result<usize, Failure> {
    let batch = config.batch().map_err(failure!())?;
    if config.data.kind.is_recorded() {
        return Ok(2 * batch.rollout_batch_size as usize);
    }
    let num_batches = match config.run.order() {
        Order::Fixed => BATCHES_IN_FLIGHT,
        Order::Arrival => BATCHES_IN_FLIGHT_ARRIVAL,
    };
    Ok((num_batches * config.rollout.max_in_flight.div_ceil(batch.n_samples_per_prompt.max(1))) as usize)
}

impl Replicator {
    /// Claims the replica's next incarnation; weights are loaded when the builder asks for some.
    pub fn start(
        store: &mut dyn Store,
        config: &RunConfig,
        run_dir: &RunDir,
        index: u32,
        profile: Option<Profile>,
        engines: &Engines,
    ) -> Result<Self, Failure> {
        let num_replicas = config.rollout.num_replicas;
        if index >= num_replicas {
            return Err(Failure::usage(format!(
                "--replica {index}: expected below rollout.num_replicas = {num_replicas}"
            )));
        }
        let mut config = config.clone();
        config.rollout.n_samples_per_prompt = Some(config.batch().map_err(failure!())?.n_samples_per_prompt);
        let tokenizer = Arc::new(Tokenizer::from_dir(&config.model.path).map_err(failure!())?);
        let goes_on = config.partial() != Partial::Off && engines.engine.is_empty();
        let replica_config = ReplicaConfig {
            index,
            max_in_flight: groups_in_flight(&config)?,
            continue_on_newer: config.partial() != Partial::Off,
            early_abort: config.rollout.early_abort,
            keeps_parts: goes_on,
            seal_ms: SEAL_MS.max(u64::from(num_replicas) * 1000 / SEALS_PER_S),
            seal_bytes: SEAL_BYTES,
            beat_ms: BEAT_MS,
        };
        let is_recorded = config.data.kind.is_recorded();
        if config.rollout.early_abort && !engines.engine.is_empty() {
            return Err(Failure::usage("--engine: servers do not stop between steps (rollout.early_abort)"));
        }
        // Servers are greeted at once, an engine is loaded with the first weights.
        if is_recorded && !engines.engine.is_empty() {
            return Err(Failure::usage("--engine: recorded responses (data.kind) are not sampled"));
        }
        if !engines.engine.is_empty() {
            check_servers(&config)?;
        }
        let sampler = (!engines.engine.is_empty())
            .then(|| Sampler::connect(engines, &config, &tokenizer))
            .transpose()?;
        let provenance = write_samples::provenance(&config);
        let log_probs =
            sampler.as_ref().map_or(provenance.log_probs, |sampler| sampler.engine.log_prob_space());
        let format = ArrowFormat { provenance: Provenance { log_probs, ..provenance } };
        let machine = Replica::start(store, replica_config, format).map_err(failure!())?;
        let observer = Observer::start(run_dir, &config, index, machine.incarnation(), profile);
        let replayer = is_recorded.then(|| Replayer::new(&config, tokenizer.clone())).transpose()?;
        let intake = Intake::new(&config, run_dir, paths::replica(index));
        let mut sampler = sampler;
        sampler.iter_mut().filter(|_| observer.wants_timings()).for_each(|s| s.engine.keep_timings());
        let ahead = TokensAhead::start(tokenizer.clone(), &config.data);
        Ok(Self { machine, sampler, replayer, config, intake, tokenizer, ahead, observer, goes_on })
    }

    /// Ends after sealing what is finished.
    pub fn drain(&mut self) {
        self.machine.drain();
    }

    /// Whether it ends, or has ended, before the run is over.
    pub fn is_draining(&self) -> bool {
        self.machine.is_draining()
    }

    /// Whether the engine has something to compute.
    pub fn is_busy(&self) -> bool {
        self.sampler.as_ref().is_some_and(|sampler| !sampler.is_idle() && !self.machine.is_stopped())
            || self.replayer.as_ref().is_some_and(|replayer| !replayer.is_idle())
    }

    /// One round of the machine.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Polled, Failure> {
        let mut found = Polled { is_done: false, has_acted: false };
        let (began, num_sealed) = (Instant::now(), self.machine.num_sealed());
        let actions = patient(self.machine.poll(store))?;
        if self.machine.num_sealed() > num_sealed {
            self.observer.sealed(self.machine.num_sealed() - num_sealed, began);
        }
        for action in actions {
            found.has_acted |= match action {
                ReplicaAction::Load { place } => !self.intake.is_waiting_for(place),
                _ => true,
            };
            match action {
                // Recorded responses are the same under all weights.
                ReplicaAction::Load { place } if self.replayer.is_some() => self.machine.on_loaded(place),
                ReplicaAction::Load { place } if self.intake.is_waiting_for(place) => {
                    self.machine.on_load_failed();
                }
                ReplicaAction::Load { place } => self.load(store, place)?,
                ReplicaAction::Prepare { step, group, attempt, prompt } => {
                    if self.replayer.is_none() {
                        let (prompt, _) = read_prompts::from_body(&prompt)?;
                        self.ahead.ask(GroupId { step, group, attempt }, &prompt);
                    }
                }
                ReplicaAction::Generate { step, group, attempt, prompt, version, parts } => {
                    let id = GroupId { step, group, attempt };
                    let (prompt, shape) = read_prompts::from_body(&prompt)?;
                    match (&mut self.replayer, &mut self.sampler) {
                        (Some(replayer), _) => replayer.submit(id, prompt, version),
                        (None, Some(sampler)) => {
                            let parts = parts.filter(|_| self.goes_on);
                            let before = parts.map(|path| read_samples::unfinished(store, &path, id));
                            let before = before.unwrap_or_default();
                            sampler.submit(id, self.ahead.take(id, prompt)?, shape, before)?;
                        }
                        (None, None) => {}
                    }
                }
                ReplicaAction::Cancel { step, group, attempt } => {
                    let id = GroupId { step, group, attempt };
                    self.ahead.forget(id);
                    self.replayer.iter_mut().for_each(|replayer| replayer.abort(id));
                    self.sampler.iter_mut().for_each(|sampler| sampler.abort(id));
                }
                ReplicaAction::Surrender => {
                    let groups = self.sampler.iter_mut().flat_map(Sampler::surrender);
                    let unfinished = groups.map(|(id, samples)| (id.step, id.group, id.attempt, samples));
                    self.machine.on_unfinished(unfinished.collect());
                }
                ReplicaAction::Done => found.is_done = true,
            }
        }
        Ok(found)
    }

    /// One step of the engine, or all that is to be replayed.
    pub fn step(&mut self) -> Result<(), Failure> {
        if let Some(replayer) = self.replayer.as_mut().filter(|replayer| !replayer.is_idle()) {
            for (GroupId { step, group, attempt }, rows) in replayer.step()? {
                self.machine.on_finished(step, group, attempt, rows);
            }
        }
        let is_stopped = self.machine.is_stopped();
        let Some(sampler) = self.sampler.as_mut().filter(|sampler| !sampler.is_idle() && !is_stopped) else {
            self.observer.rest();
            return Ok(());
        };
        let (began, load) = (Instant::now(), sampler.engine.load());
        let finished = sampler.step()?;
        for (group, timing) in sampler.take_timings() {
            self.observer.finished(group, &timing);
        }
        self.observer.stepped(sampler, load, began)?;
        for (GroupId { step, group, attempt }, rows) in finished {
            self.machine.on_finished(step, group, attempt, rows);
        }
        Ok(())
    }

    /// The last words.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.replayer.iter().for_each(Replayer::tell_cut);
        self.observer.finish(self.sampler.as_ref())
    }

    /// Weights that vanished were pruned: the machine asks for others.
    fn load(&mut self, store: &mut dyn Store, place: Physical) -> Result<(), Failure> {
        let began = Instant::now();
        let is_busy = self.sampler.as_ref().is_some_and(|sampler| !sampler.is_idle());
        let loaded = self.intake.take(store, place).and_then(|received| {
            received.map(|received| self.put(&received, place.version).map(|()| received)).transpose()
        });
        match loaded {
            Ok(Some(received)) => {
                self.machine.on_loaded(place);
                self.intake.taken(store, place, &received, began.elapsed())?;
                self.observer.loaded(place.version, began);
                return Ok(());
            }
            Ok(None) => self.intake.missed(place),
            Err(failure) if failure.code == slime_cli::exit::NO_INPUT => self.intake.missed(place),
            Err(failure) => self.intake.refused(place, failure, is_busy)?,
        }
        self.machine.on_load_failed();
        Ok(())
    }

    /// Puts the weights into the engine, which is made when they are its first.
    fn put(&mut self, received: &Received, version: u64) -> Result<(), Failure> {
        if let Some(sampler) = &mut self.sampler {
            return sampler.reload(&received.dir, version);
        }
        let mut config = self.config.clone();
        config.model.path = received.dir.display().to_string();
        let mut sampler = Sampler::load(&config, &self.tokenizer, version, Purpose::Training)?;
        if self.observer.wants_timings() {
            sampler.engine.keep_timings();
        }
        self.sampler = Some(sampler);
        Ok(())
    }
}
