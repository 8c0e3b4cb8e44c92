//! The three owners of a run on a simulated clock, and what their drivers have under way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use slime_exchange::{
    BuilderAction, BuilderConfig, ColumnDigest, DrawnPrompt, Error, FinishedGroup, Format, Replica,
    ReplicaAction, ReplicaConfig, Result, SampleDigest, SealedStore, SegmentDigest, SegmentHeader, Standing,
    StepBuilder, StepPolicy, Trainer, TrainerAction, TrainerConfig, Verdict,
};
use slime_record::{Account, GroupEntry, Manifest, Publication, Stages};

use crate::engine::{Engine, NUM_SAMPLES, SWAP_MS};
use crate::memory::{Files, World};
use crate::{Mode, NUM_GROUPS, NUM_STEPS, Rates};

/// The longest the owners leave the files alone.
const POLL_MS: u64 = 200;

/// What a run of a mode did.
pub struct Outcome {
    pub run_ms: u64,
    pub trained_ms: u64,
    pub num_sampled: u64,
    pub account: Account,
    pub staleness: BTreeMap<u64, u64>,
    pub building: Duration,
}

fn builder_config(mode: &Mode) -> BuilderConfig {
    BuilderConfig {
        max_staleness: mode.max_staleness,
        publish_interval: 1,
        order: mode.order,
        num_groups: NUM_GROUPS,
        over_sampling: mode.over_sampling,
        buffer_order: mode.buffer_order,
        max_reuse: mode.max_reuse,
        max_groups: u32::MAX,
        has_filter: false,
        num_steps: NUM_STEPS,
        num_replicas: 1,
        max_in_flight: mode.in_flight(),
        lease_ms: 600_000,
        beat_ms: 2000,
        columns: Vec::new(),
        history_steps: 0,
        eval_interval: 0,
        eval_at_start: false,
    }
}

/// The three owners and what their drivers have under way.
struct Run {
    world: Rc<RefCell<World>>,
    store: SealedStore<Files>,
    builder: StepBuilder<Digests>,
    replica: Replica<Digests>,
    trainer: Trainer,
    engine: Engine,
    swap: Option<(u64, slime_exchange::Physical)>,
    training: Option<u64>,
    outcome: Outcome,
    is_over: bool,
}

/// Runs a mode to its end.
pub fn run(mode: &Mode, rates: &Rates) -> Outcome {
    let world = Rc::new(RefCell::new(World::default()));
    let mut store = SealedStore::over(Files(world.clone()), "bench");
    let replica = ReplicaConfig {
        index: 0,
        max_in_flight: mode.in_flight(),
        continue_on_newer: mode.continues,
        early_abort: mode.early_abort,
        keeps_parts: false,
        seal_ms: 500,
        seal_bytes: 64 << 20,
        beat_ms: 2000,
    };
    let trainer = TrainerConfig {
        num_steps: NUM_STEPS,
        publish_interval: 1,
        max_staleness: mode.max_staleness,
        checkpoint_interval: 0,
        keep_checkpoints: 1,
        keep_weights_every: 0,
        resume: None,
        visibility_ms: 60_000,
        eval_interval: 0,
        eval_at_start: false,
        num_replicas: 1,
        beat_ms: 2000,
    };
    let started = "an empty run directory";
    let mut run = Run {
        trainer: Trainer::start(&mut store, trainer).expect(started),
        builder: StepBuilder::start(&mut store, builder_config(mode), Digests).expect(started),
        replica: Replica::start(&mut store, replica, Digests).expect(started),
        world,
        store,
        engine: Engine::new(mode.masks_old),
        swap: None,
        training: None,
        outcome: Outcome {
            run_ms: 0,
            trained_ms: 0,
            num_sampled: 0,
            account: Account::default(),
            staleness: BTreeMap::new(),
            building: Duration::ZERO,
        },
        is_over: false,
    };
    while !run.is_over {
        run.hand_in();
        run.settle(rates);
        run.pass_time();
    }
    run.outcome.run_ms = run.world.borrow().now_ms;
    run.outcome.num_sampled = run.engine.num_sampled;
    run.outcome
}

impl Run {
    fn now_ms(&self) -> u64 {
        self.world.borrow().now_ms
    }

    /// What ends now.
    fn hand_in(&mut self) {
        let now_ms = self.now_ms();
        if let Some((_, place)) = self.swap.filter(|(done_ms, _)| *done_ms <= now_ms) {
            self.swap = None;
            self.replica.on_loaded(place);
        }
        for ((step, group, attempt), rows) in self.engine.finished(now_ms) {
            self.replica.on_finished(step, group, attempt, rows);
        }
        if self.training.is_some_and(|done_ms| done_ms <= now_ms) {
            self.training = None;
            self.trainer.on_trained();
        }
    }

    /// Polls until nothing changes any more.
    fn settle(&mut self, rates: &Rates) {
        loop {
            let before = self.world.borrow().num_changes;
            let has_acted = self.poll_builder() | self.poll_replica() | self.poll_trainer(rates);
            if self.is_over || !has_acted && self.world.borrow().num_changes == before {
                return;
            }
        }
    }

    fn poll_builder(&mut self) -> bool {
        let began = Instant::now();
        let actions = self.builder.poll(&mut self.store, &mut Prompts).expect("no accidents");
        self.outcome.building += began.elapsed();
        for action in &actions {
            if let BuilderAction::Committed { manifest } = action {
                self.account(manifest);
            }
        }
        !actions.is_empty()
    }

    fn account(&mut self, manifest: &Manifest) {
        let (of, sum) = (&manifest.account, &mut self.outcome.account);
        sum.response += of.response;
        sum.trained += of.trained;
        sum.reused += of.reused;
        sum.refused += of.refused;
        sum.expired += of.expired;
        sum.surplus += of.surplus;
        sum.replaced += of.replaced;
        for (staleness, count) in manifest.staleness_histogram() {
            *self.outcome.staleness.entry(staleness).or_default() += count;
        }
    }

    fn poll_replica(&mut self) -> bool {
        let now_ms = self.now_ms();
        let actions = self.replica.poll(&mut self.store).expect("no accidents");
        self.engine.stop(self.replica.is_stopped(), now_ms);
        for action in &actions {
            match action {
                ReplicaAction::Load { place } => {
                    self.engine.swap(place.version, now_ms);
                    self.swap = Some((now_ms + SWAP_MS, *place));
                }
                ReplicaAction::Generate { step, group, attempt, prompt, .. } => {
                    self.engine.submit((*step, *group, *attempt), prompt.as_str().unwrap_or_default());
                }
                ReplicaAction::Cancel { step, group, attempt } => {
                    self.engine.cancel((*step, *group, *attempt));
                }
                ReplicaAction::Prepare { .. } | ReplicaAction::Surrender | ReplicaAction::Done => {}
            }
        }
        !actions.is_empty()
    }

    fn poll_trainer(&mut self, rates: &Rates) -> bool {
        let now_ms = self.now_ms();
        let actions = self.trainer.poll(&mut self.store).expect("no accidents");
        for action in &actions {
            match action {
                TrainerAction::Load { .. } => self.trainer.on_loaded(),
                TrainerAction::SaveWeights { place, .. } => self.trainer.on_saved(Publication {
                    version: place.version,
                    epoch: place.epoch,
                    transport: "disk".to_owned(),
                    ..Publication::default()
                }),
                TrainerAction::Train { manifest, .. } => {
                    let ms = (manifest.account.response as f64 * rates.train_us_per_token / 1e3) as u64;
                    self.training = Some(now_ms + ms);
                    self.outcome.trained_ms += ms;
                }
                TrainerAction::SaveCheckpoint { .. } => self.trainer.on_checkpointed(Vec::new()),
                TrainerAction::Done { .. } => self.is_over = true,
            }
        }
        !actions.is_empty()
    }

    /// To the next event, or to the next look at the files.
    fn pass_time(&mut self) {
        let now_ms = self.now_ms();
        let events = [self.swap.map(|(done_ms, _)| done_ms), self.training, self.engine.next_ms()];
        let next = events.into_iter().flatten().filter(|at| *at > now_ms).min();
        self.world.borrow_mut().now_ms = next.unwrap_or(u64::MAX).min(now_ms + POLL_MS);
    }
}

/// Prompts without end; every group is kept.
struct Prompts;

impl StepPolicy for Prompts {
    fn draw(&mut self, _step: u64, position: u64, _stages: &Stages) -> Result<Option<DrawnPrompt>> {
        let prompt_id = format!("p{position}");
        Ok(Some(DrawnPrompt { body: prompt_id.clone().into(), prompt_id, num_samples: NUM_SAMPLES }))
    }

    fn judge(&mut self, _group: &FinishedGroup<'_>) -> Result<Verdict> {
        Ok(Verdict::Keep)
    }

    fn standing(&mut self, _group: &FinishedGroup<'_>) -> Result<Standing> {
        Ok(Standing::default())
    }

    fn arrange(&mut self, _step: u64, groups: &[&GroupEntry]) -> Result<Vec<usize>> {
        Ok((0..groups.len()).collect())
    }
}

/// Segments as JSON, without tokens.
#[derive(Debug, Clone, Copy)]
struct Digests;

impl Format for Digests {
    type Row = SampleDigest;

    fn write(&self, header: &SegmentHeader, rows: &[SampleDigest], out: &mut dyn Write) -> Result<()> {
        let digest = SegmentDigest { header: *header, rows: rows.to_vec() };
        serde_json::to_writer(out, &digest).map_err(Error::outside)
    }

    fn row_bytes(&self, row: &SampleDigest) -> usize {
        row.response_len as usize
    }

    fn digest(&self, bytes: &[u8]) -> Result<SegmentDigest> {
        serde_json::from_slice(bytes).map_err(Error::outside)
    }

    fn encode_column(&self, _name: &str, column: &ColumnDigest) -> Result<Vec<u8>> {
        serde_json::to_vec(column).map_err(Error::outside)
    }

    fn column(&self, _name: &str, bytes: &[u8]) -> Result<ColumnDigest> {
        serde_json::from_slice(bytes).map_err(Error::outside)
    }
}
