//! What each mode of building steps makes of a generator and a trainer that work beside each other: the step builder,
//! replica and trainer of the product on a simulated clock, with stated speeds and a long-tailed law of lengths.
//!
//! `cargo bench -p slime-exchange --bench modes` prints the table of the README.
#![allow(clippy::print_stdout, missing_docs)]

mod engine;
mod memory;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use engine::{Engine, MAX_LEN, MEDIAN_LEN, NUM_SAMPLES, NUM_SLOTS, SPREAD, SWAP_MS, TOKEN_MS, response_len};
use memory::{Files, World};
use slime_exchange::{
    BufferOrder, BuilderAction, BuilderConfig, ColumnDigest, DrawnPrompt, Error, FinishedGroup, Format,
    Order, Replica, ReplicaAction, ReplicaConfig, Result, SampleDigest, SealedStore, SegmentDigest,
    SegmentHeader, Standing, StepBuilder, StepPolicy, Trainer, TrainerAction, TrainerConfig, Verdict,
};
use slime_record::{Account, GroupEntry, Manifest, Publication};

/// Groups of a step, and steps of a run.
const NUM_GROUPS: usize = 16;
const NUM_STEPS: u64 = 60;
/// The longest the owners leave the files alone.
const POLL_MS: u64 = 200;

/// A mode.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    max_staleness: u64,
    order: Order,
    over_sampling: usize,
    continues: bool,
    masks_old: bool,
    buffer_order: BufferOrder,
    max_reuse: u32,
}

impl Mode {
    /// Groups under way, as `slime-rollout` has them: a group keeps its place until its last sample has ended.
    fn in_flight(&self) -> usize {
        let batches = if self.order == Order::Arrival { 6 } else { 2 };
        batches * NUM_SLOTS / NUM_SAMPLES as usize
    }
}

const SYNCHRONOUS: Mode = Mode {
    name: "synchronous",
    max_staleness: 0,
    order: Order::Fixed,
    over_sampling: NUM_GROUPS,
    continues: false,
    masks_old: false,
    buffer_order: BufferOrder::Fifo,
    max_reuse: 1,
};
const ARRIVAL: Mode = Mode { order: Order::Arrival, continues: true, max_staleness: 4, ..SYNCHRONOUS };

const MODES: [Mode; 9] = [
    SYNCHRONOUS,
    Mode { name: "one step off", max_staleness: 1, ..SYNCHRONOUS },
    Mode { name: "partial rollouts, 1", max_staleness: 1, over_sampling: NUM_GROUPS * 5 / 4, ..ARRIVAL },
    Mode { name: "partial rollouts, 2", max_staleness: 2, over_sampling: NUM_GROUPS * 5 / 4, ..ARRIVAL },
    Mode {
        name: "partial rollouts, 2, old part masked",
        max_staleness: 2,
        over_sampling: NUM_GROUPS * 5 / 4,
        masks_old: true,
        ..ARRIVAL
    },
    Mode { name: "asynchronous, 4", ..ARRIVAL },
    Mode { name: "asynchronous, 4, without continuing", continues: false, ..ARRIVAL },
    Mode { name: "asynchronous, 4, newest first", buffer_order: BufferOrder::Newest, ..ARRIVAL },
    Mode { name: "asynchronous, 4, each group twice", max_reuse: 2, ..ARRIVAL },
];

/// What a run of a mode did.
struct Outcome {
    run_ms: u64,
    trained_ms: u64,
    num_sampled: u64,
    account: Account,
    staleness: BTreeMap<u64, u64>,
    building: Duration,
}

fn main() {
    let rates = Rates::measure();
    rates.print();
    let synchronous = run(&SYNCHRONOUS, &rates);
    println!(
        "| mode | trained tokens/s | of synchronous | generator busy | trainer busy | staleness: mean, most | sampled: \
         trained, masked, dropped, left at the end | step building |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for mode in &MODES {
        row(mode, &run(mode, &rates), &synchronous);
    }
}

/// Mean numbers of a step, from the law of lengths alone.
struct Rates {
    /// The engine's time for a step's tokens with all slots in use.
    work_ms: f64,
    /// The engine's time for a step that ends with its longest sample.
    synchronous_ms: f64,
    /// What the trainer takes for a response token, so that a step trains as long as `work_ms`.
    train_us_per_token: f64,
}

impl Rates {
    fn measure() -> Self {
        let (mut num_tokens, mut synchronous_ms) = (0.0, 0.0);
        for step in 0..NUM_STEPS {
            let mut engine = Engine::new(false);
            for group in 0..NUM_GROUPS as u32 {
                engine.submit((step, group, 0), "");
                num_tokens += (0..NUM_SAMPLES).map(|i| f64::from(response_len(step, group, i))).sum::<f64>();
            }
            let mut now_ms = 0;
            engine.finished(now_ms);
            while let Some(next_ms) = engine.next_ms() {
                now_ms = next_ms;
                engine.finished(now_ms);
            }
            synchronous_ms += now_ms as f64;
        }
        let steps = NUM_STEPS as f64;
        let work_ms = num_tokens / steps * TOKEN_MS as f64 / NUM_SLOTS as f64;
        let train_us_per_token = 1000.0 * work_ms / (num_tokens / steps);
        Self { work_ms, synchronous_ms: synchronous_ms / steps, train_us_per_token }
    }

    fn print(&self) {
        let Self { work_ms, synchronous_ms, train_us_per_token } = self;
        println!(
            "{NUM_STEPS} steps of {NUM_GROUPS} groups of {NUM_SAMPLES}; lengths log-normal, median {MEDIAN_LEN}, sigma \
             {SPREAD}, at most {MAX_LEN}; {NUM_SLOTS} sequences at once, a token each in {TOKEN_MS} ms, new weights in \
             {SWAP_MS} ms; training {train_us_per_token:.0} us a token"
        );
        let (overlap, tail) = (2.0, synchronous_ms / work_ms);
        // Beside each other, both busy all the time, against generation to the longest sample and training behind it.
        let both = (synchronous_ms + work_ms) / work_ms;
        println!(
            "ceilings: overlap {overlap:.1}, tail {tail:.2} (of generation alone), both together {both:.2} x synchronous\n"
        );
    }
}

fn row(mode: &Mode, outcome: &Outcome, synchronous: &Outcome) {
    let per_s = |outcome: &Outcome| outcome.account.trained as f64 / (outcome.run_ms as f64 / 1e3);
    let generator = outcome.num_sampled as f64 * TOKEN_MS as f64 / (NUM_SLOTS as f64 * outcome.run_ms as f64);
    let samples: u64 = outcome.staleness.values().sum();
    let sum: u64 = outcome.staleness.iter().map(|(staleness, count)| staleness * count).sum();
    let account = &outcome.account;
    let share = |tokens: u64| 100.0 * tokens as f64 / outcome.num_sampled as f64;
    let dropped = account.refused + account.expired + account.surplus + account.replaced;
    let used = account.response - account.reused;
    let first_trained = share(used) * account.trained as f64 / account.response as f64;
    let first_masked = share(used) - first_trained;
    println!(
        "| {} | {:.0} | {:.2} x | {:.0} % | {:.0} % | {:.2}, {} | {first_trained:.1}, {first_masked:.1}, {:.1}, {:.1} % | \
         {:.4} % |",
        mode.name,
        per_s(outcome),
        per_s(outcome) / per_s(synchronous),
        100.0 * generator,
        100.0 * outcome.trained_ms as f64 / outcome.run_ms as f64,
        sum as f64 / samples as f64,
        outcome.staleness.keys().last().copied().unwrap_or(0),
        share(dropped),
        (100.0 - share(used) - share(dropped)).max(0.0),
        100.0 * outcome.building.as_secs_f64() / (outcome.run_ms as f64 / 1e3),
    );
}

fn builder_config(mode: &Mode) -> BuilderConfig {
    BuilderConfig {
        max_staleness: mode.max_staleness,
        publish_interval: 1,
        order: mode.order,
        num_groups: NUM_GROUPS,
        num_samples: NUM_SAMPLES,
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

fn run(mode: &Mode, rates: &Rates) -> Outcome {
    let world = Rc::new(RefCell::new(World::default()));
    let mut store = SealedStore::over(Files(world.clone()), "bench");
    let replica = ReplicaConfig {
        index: 0,
        max_in_flight: mode.in_flight(),
        continue_on_newer: mode.continues,
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
                    self.engine.cancel((*step, *group, *attempt))
                }
                ReplicaAction::Surrender | ReplicaAction::Done => {}
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
                TrainerAction::SaveWeights { place } => self.trainer.on_saved(Publication {
                    version: place.version,
                    epoch: place.epoch,
                    same_as: None,
                    transport: "disk".to_owned(),
                    path: None,
                    hash: 0,
                    tensors: Vec::new(),
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
    fn draw(&mut self, _step: u64, cursor: u64) -> Result<Option<DrawnPrompt>> {
        let prompt_id = format!("p{cursor}");
        Ok(Some(DrawnPrompt { body: prompt_id.clone().into(), prompt_id }))
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
