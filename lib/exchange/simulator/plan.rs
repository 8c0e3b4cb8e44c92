//! The settings of one schedule, drawn from its seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Fault;
use super::files::{Chances, VISIBILITY_MS};
use super::format::SimPolicy;
use super::process::Role;
use super::weights::Way;
use crate::{BufferOrder, BuilderConfig, Order, ReplicaConfig, RewardWorkerConfig, TrainerConfig};

/// The settings of one schedule.
#[expect(clippy::struct_excessive_bools, reason = "the settings are independent")]
pub(super) struct Plan {
    pub seed: u64,
    pub fault: Fault,
    /// The filter refuses every group.
    pub refuses_all: bool,
    /// What the filter refuses may still fill a step.
    has_fallback: bool,
    pub builder: BuilderConfig,
    pub trainer: TrainerConfig,
    pub way: Way,
    num_workers: u32,
    continue_on_newer: bool,
    early_abort: bool,
    pub chances: Chances,
    /// How many times longer than a few milliseconds work takes.
    pub pace: u64,
    /// When the accidents stop, so that progress can be demanded.
    pub calm_ms: u64,
}

impl Plan {
    pub fn draw(seed: u64, fault: Fault) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let max_staleness = [0, 1, 4][rng.random_range(0..3)];
        let publish_interval = if max_staleness > 0 { rng.random_range(1..=2) } else { 1 };
        let is_arrival = max_staleness > 0 && rng.random_bool(0.6);
        let has_filter = rng.random_bool(0.5);
        let num_replicas = rng.random_range(1..=3);
        let num_steps = rng.random_range(4..=7);
        let eval_interval = [0, 2][rng.random_range(0..2)];
        let eval_at_start = rng.random_bool(0.5);
        let buffer_order = match rng.random_range(0..8) {
            _ if !is_arrival => BufferOrder::Fifo,
            0 => BufferOrder::Newest,
            1 => BufferOrder::Priority,
            2 => BufferOrder::Stratified,
            3 => BufferOrder::Policy,
            _ => BufferOrder::Fifo,
        };
        let has_fallback = rng.random_bool(0.3);
        let builder = BuilderConfig {
            max_staleness,
            publish_interval,
            order: if is_arrival { Order::Arrival } else { Order::Fixed },
            num_groups: 2,
            over_sampling: rng.random_range(2..=4),
            buffer_order,
            max_reuse: if is_arrival { rng.random_range(1..=3) } else { 1 },
            max_groups: 60,
            has_filter,
            num_steps,
            num_replicas,
            max_in_flight: rng.random_range(1..=4),
            lease_ms: 250,
            beat_ms: 20,
            columns: vec!["reward".into()],
            history_steps: rng.random_range(0..=3),
            eval_interval,
            eval_at_start,
        };
        let trainer = TrainerConfig {
            num_steps,
            publish_interval,
            max_staleness,
            checkpoint_interval: rng.random_range(0..=3),
            keep_checkpoints: rng.random_range(1..=2),
            keep_weights_every: 0,
            resume: None,
            visibility_ms: 2 * VISIBILITY_MS,
            eval_interval,
            eval_at_start,
            num_replicas,
            beat_ms: 20,
        };
        let mut chance = |most: u32| if rng.random_bool(0.5) { rng.random_range(0..=most) } else { 0 };
        let chances = Chances {
            stale: chance(20),
            lying: chance(200),
            full: chance(10),
            kill: chance(12),
            freeze: chance(12),
            broken: chance(30),
            delay_ms: u64::from(chance(VISIBILITY_MS as u32)),
        };
        let calm_ms = rng.random_range(300..3000);
        let (num_workers, continue_on_newer) = (rng.random_range(1..=2), rng.random_bool(0.5));
        let early_abort =
            rng.random_bool(0.5) && continue_on_newer && is_arrival && builder.publish_interval == 1;
        let way = match rng.random_range(0..4) {
            0 => Way::Delta(rng.random_range(1..=4)),
            1 => Way::Memory,
            _ => Way::Disk,
        };
        Self {
            seed,
            fault,
            way,
            refuses_all: false,
            has_fallback,
            builder,
            trainer,
            num_workers,
            continue_on_newer,
            early_abort,
            chances,
            pace: 1,
            calm_ms,
        }
    }

    /// A run on 256 GPUs without accidents, with the times of the tools: 128 ranks train, 32 replicas of four ranks
    /// generate, eight workers compute rewards; a group takes up to a minute, one in twenty up to five.
    pub fn large() -> Self {
        let mut plan = Self::draw(0, Fault::None);
        plan.builder = BuilderConfig {
            max_staleness: 1,
            publish_interval: 1,
            order: Order::Fixed,
            num_groups: 128,
            over_sampling: 128,
            max_groups: 1000,
            has_filter: false,
            num_steps: 6,
            num_replicas: 32,
            max_in_flight: 8,
            lease_ms: 60_000,
            beat_ms: 2000,
            eval_interval: 0,
            ..plan.builder
        };
        plan.trainer = TrainerConfig {
            num_steps: 6,
            publish_interval: 1,
            max_staleness: 1,
            checkpoint_interval: 2,
            num_replicas: 32,
            visibility_ms: 60_000,
            eval_interval: 0,
            beat_ms: 2000,
            ..plan.trainer
        };
        plan.way = Way::Disk;
        plan.num_workers = 8;
        plan.chances = Chances::default();
        plan.pace = 1000;
        plan.calm_ms = 0;
        plan
    }

    pub fn policy(&self) -> SimPolicy {
        SimPolicy {
            seed: self.seed,
            has_filter: self.builder.has_filter,
            has_fallback: self.has_fallback,
            refuses_all: self.refuses_all,
            max_staleness: self.builder.max_staleness,
        }
    }

    pub fn replica(&self, index: u32) -> ReplicaConfig {
        ReplicaConfig {
            index,
            max_in_flight: self.builder.max_in_flight.max(3),
            continue_on_newer: self.continue_on_newer,
            early_abort: self.early_abort,
            keeps_parts: self.continue_on_newer && self.builder.order == Order::Arrival,
            seal_ms: 10.max(self.pace * 16 / 10),
            seal_bytes: if self.pace > 1 { 64 << 20 } else { 6 },
            beat_ms: self.builder.beat_ms,
        }
    }

    pub fn reward(&self, index: u32) -> RewardWorkerConfig {
        RewardWorkerConfig {
            column: "reward".into(),
            index,
            num_workers: self.num_workers,
            max_in_flight: 4,
            max_staleness: self.builder.max_staleness,
            beat_ms: self.builder.beat_ms,
        }
    }

    pub fn roles(&self) -> Vec<Role> {
        let replicas = (0..self.builder.num_replicas).map(Role::Replica);
        let workers = (0..self.num_workers).map(Role::Reward);
        [Role::Builder, Role::Trainer].into_iter().chain(replicas).chain(workers).collect()
    }
}
