//! One random schedule: settings and accidents drawn from a seed, run to the end or to a bound.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::paths;

use super::Fault;
use super::files::{Chances, VISIBILITY_MS, World};
use super::format::SimPolicy;
use super::oracle::Oracle;
use super::process::{Process, Role, Turn};
use crate::{BuilderConfig, Order, ReplicaConfig, Result, RewardWorkerConfig, TrainerConfig};

/// Polls after which a schedule counts as stuck; undisturbed ones need about 1,000.
const MAX_TURNS: u32 = 60_000;

/// The settings of one schedule.
pub(super) struct Plan {
    pub seed: u64,
    pub fault: Fault,
    /// The filter refuses every group.
    pub refuses_all: bool,
    pub builder: BuilderConfig,
    pub trainer: TrainerConfig,
    num_workers: u32,
    continue_on_newer: bool,
    chances: Chances,
    /// When the accidents stop, so that progress can be demanded.
    calm_ms: u64,
}

impl Plan {
    pub const NUM_SAMPLES: u32 = 2;

    pub fn draw(seed: u64, fault: Fault) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let max_staleness = [0, 1, 4][rng.random_range(0..3)];
        let publish_interval = if max_staleness > 0 { rng.random_range(1..=2) } else { 1 };
        let is_arrival = max_staleness > 0 && rng.random_bool(0.6);
        let has_filter = rng.random_bool(0.5);
        let num_replicas = rng.random_range(1..=3);
        let num_steps = rng.random_range(4..=7);
        let eval_interval = [0, 2][rng.random_range(0..2)];
        let builder = BuilderConfig {
            max_staleness,
            publish_interval,
            order: if is_arrival { Order::Arrival } else { Order::Fixed },
            num_groups: 2,
            num_samples: Self::NUM_SAMPLES,
            over_sampling: rng.random_range(2..=4),
            max_groups: 60,
            has_filter,
            num_steps,
            num_replicas,
            max_in_flight: rng.random_range(1..=4),
            lease_ms: 250,
            beat_ms: 20,
            columns: vec!["reward".into()],
            eval_interval,
        };
        let trainer = TrainerConfig {
            num_steps,
            publish_interval,
            max_staleness,
            checkpoint_interval: rng.random_range(0..=3),
            keep_checkpoints: rng.random_range(1..=2),
            visibility_ms: 2 * VISIBILITY_MS,
            eval_interval,
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
        let refuses_all = false;
        Self { seed, fault, refuses_all, builder, trainer, num_workers, continue_on_newer, chances, calm_ms }
    }

    pub fn policy(&self) -> SimPolicy {
        SimPolicy { seed: self.seed, has_filter: self.builder.has_filter, refuses_all: self.refuses_all }
    }

    pub fn replica(&self, index: u32) -> ReplicaConfig {
        ReplicaConfig {
            index,
            max_in_flight: 3,
            continue_on_newer: self.continue_on_newer,
            seal_ms: 10,
            seal_bytes: 6,
            beat_ms: 20,
        }
    }

    pub fn reward(&self, index: u32) -> RewardWorkerConfig {
        RewardWorkerConfig {
            column: "reward".into(),
            index,
            num_workers: self.num_workers,
            max_in_flight: 4,
            beat_ms: 20,
        }
    }

    fn roles(&self) -> Vec<Role> {
        let replicas = (0..self.builder.num_replicas).map(Role::Replica);
        let workers = (0..self.num_workers).map(Role::Reward);
        [Role::Builder, Role::Trainer].into_iter().chain(replicas).chain(workers).collect()
    }
}

/// What a schedule went through, to see that the accidents happen.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    pub turns: u64,
    pub deaths: u64,
    pub zombies: u64,
    /// Owners that drained alone and were started again.
    pub drains: u64,
    /// Runs that were stopped as a whole and started again.
    pub stops: u64,
}

/// Runs the schedule of a seed, which nothing may stop.
pub(super) fn run_seed(seed: u64, fault: Fault) -> Tally {
    run(&Plan::draw(seed, fault)).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a schedule to its end, or to an error that no restart cures; a broken property is a panic.
pub(super) fn run(plan: &Plan) -> Result<Tally> {
    let world = World::new(plan.seed ^ 0x5eed, plan.chances);
    world.borrow_mut().replaces_commits = plan.fault == Fault::ReplaceCommits;
    let mut oracle = Oracle::default();
    let mut tally = Tally::default();
    let mut next_process = 0;
    let mut processes: Vec<Process> = Vec::new();
    let all = |at| plan.roles().into_iter().map(move |role| (at, role)).collect::<Vec<_>>();
    let mut starts: Vec<(u64, Role)> = all(0);
    let mut is_stopping = false;
    for _ in 0..MAX_TURNS {
        tally.turns += 1;
        let (now_ms, pick, is_double, is_drain, is_stop) = {
            let mut world = world.borrow_mut();
            let rng = &mut world.rng;
            let (passed, pick) = (rng.random_range(1..=3), rng.random::<u32>() as usize);
            let (is_double, is_drain) = (rng.random_ratio(1, 600), rng.random_ratio(1, 600));
            let is_stop = rng.random_ratio(1, 4000);
            world.now_ms += passed;
            if world.now_ms >= plan.calm_ms {
                world.chances = Chances { delay_ms: plan.chances.delay_ms, ..Chances::default() };
            }
            let is_wild = world.now_ms < plan.calm_ms;
            (world.now_ms, pick, is_double && is_wild, is_drain && is_wild, is_stop && is_wild)
        };
        if is_stop && !is_stopping {
            is_stopping = true;
            tally.stops += 1;
            world.borrow_mut().write_foreign(paths::STOP);
        }
        if is_stopping {
            // What ended is not started again before the run is.
            starts.clear();
            if processes.is_empty() {
                is_stopping = false;
                world.borrow_mut().remove_foreign(paths::STOP);
                if world.borrow().truth(paths::DONE).is_none() {
                    starts = all(now_ms + 1);
                }
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = starts.into_iter().partition(|(at, _)| *at <= now_ms);
        starts = later;
        for (_, role) in due {
            next_process += 1;
            match Process::start(&world, next_process, role, plan)? {
                Some(process) => processes.push(process),
                None => starts.push((now_ms + 20, role)),
            }
        }
        if processes.is_empty() {
            if starts.is_empty() {
                break;
            }
            continue;
        }
        let index = pick % processes.len();
        let process = &mut processes[index];
        if process.frozen_until.is_some_and(|until| now_ms < until) {
            continue;
        }
        let role = process.role;
        // A frozen poll is led back to where it stopped: the wish comes after it.
        if is_drain && process.frozen_until.is_none() {
            process.drain();
        }
        let turn = process.turn(&world, plan, &mut oracle)?;
        oracle.watch(&world.borrow());
        let mut replace = |latest: u64| {
            let at = now_ms + world.borrow_mut().rng.random_range(1..=latest);
            starts.push((at, role));
        };
        match turn {
            Turn::Alive
                if is_double && !processes.iter().any(|p| p.role == role && p.frozen_until.is_some()) =>
            {
                tally.zombies += 1;
                replace(1);
            }
            Turn::Alive => {}
            Turn::Frozen => {
                tally.zombies += 1;
                let away = world.borrow_mut().rng.random_range(1..2000);
                processes[index].frozen_until = Some(now_ms + away);
                replace(300);
            }
            Turn::Gone => {
                tally.deaths += 1;
                processes.swap_remove(index);
                if !processes.iter().any(|process| process.role == role) {
                    replace(100);
                }
            }
            Turn::Finished => {
                processes.swap_remove(index);
                if world.borrow().truth(paths::DONE).is_none() {
                    tally.drains += 1;
                    if !processes.iter().any(|process| process.role == role) {
                        replace(100);
                    }
                }
            }
        }
    }
    let is_done = world.borrow().truth(paths::DONE).is_some();
    assert!(
        is_done && starts.is_empty(),
        "stuck after {} turns at {} ms with {} of {} steps committed",
        tally.turns,
        world.borrow().now_ms,
        oracle.num_committed(),
        plan.builder.num_steps
    );
    Ok(tally)
}
