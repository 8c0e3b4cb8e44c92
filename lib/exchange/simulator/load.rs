//! What a run on 256 GPUs asks of the filesystem's metadata server: every owner polls as the tools do, and every raw
//! call is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use super::files::World;
use super::oracle::Oracle;
use super::plan::Plan;
use super::process::{Process, Role, Turn};
use crate::idle::{NUM_COSTS, busy_pause, pause};

/// What one call costs its caller, on a parallel filesystem under load.
const CALL_MS: f64 = 1.0;
/// Calls a metadata server answers in a second: a single one of Lustre does several times as many.
const SERVER_PER_S: f64 = 20_000.0;

/// The run takes some minutes a step.
const LONGEST_MS: u64 = 3_600_000;

struct Actor {
    process: Process,
    number: u32,
    next_ms: u64,
    since_ms: u64,
    /// Calls of the last polls.
    costs: [u64; NUM_COSTS],
    is_over: bool,
}

impl Actor {
    /// When the tool looks again: a replica at work keeps polling, a trainer or worker at work does not.
    fn wake_ms(&self, now_ms: u64) -> u64 {
        let cost = Duration::from_secs_f64(
            self.costs.iter().copied().min().unwrap_or_default() as f64 * CALL_MS / 1e3,
        );
        let idle_ms = now_ms + pause(Duration::from_millis(now_ms - self.since_ms), cost).as_millis() as u64;
        match (self.process.role, self.process.next_work_ms()) {
            (_, None) | (Role::Builder, _) => idle_ms,
            (Role::Replica(_), Some(_)) => now_ms + busy_pause(cost).as_millis() as u64,
            (_, Some(done_ms)) => done_ms.max(now_ms + 1),
        }
    }
}

#[test]
fn metadata_of_256_gpus_takes_less_than_a_hundredth_of_a_step() {
    let plan = Plan::large();
    let world = World::new(super::seeds().start, plan.chances);
    let mut oracle = Oracle::default();
    let mut actors: Vec<Actor> = Vec::new();
    for (number, role) in (1..).zip(plan.roles()) {
        let process = Process::start(&world, number, role, &plan).unwrap().unwrap();
        actors.push(Actor {
            process,
            number,
            next_ms: 0,
            since_ms: 0,
            costs: [0; NUM_COSTS],
            is_over: false,
        });
    }
    while let Some(index) =
        (0..actors.len()).filter(|i| !actors[*i].is_over).min_by_key(|i| actors[*i].next_ms)
    {
        let actor = &mut actors[index];
        let now_ms = actor.next_ms.max(world.borrow().now_ms);
        world.borrow_mut().now_ms = now_ms;
        let num_events = actor.process.num_events();
        let num_calls = |world: &World| world.calls.get(&actor.number).copied().unwrap_or_default();
        let before = num_calls(&world.borrow());
        match actor.process.turn(&world, &plan, &mut oracle).unwrap() {
            Turn::Finished => actor.is_over = true,
            Turn::Alive => {}
            Turn::Gone | Turn::Frozen => panic!("an accident"),
        }
        let cost = num_calls(&world.borrow()) - before;
        actor.costs.rotate_right(1);
        actor.costs[0] = cost;
        if actor.process.role == Role::Builder {
            oracle.watch(&world.borrow());
        }
        assert!(now_ms < LONGEST_MS, "stuck with {} steps committed", oracle.num_committed());
        if actor.process.num_events() != num_events {
            actor.since_ms = now_ms;
        }
        actor.next_ms = actor.wake_ms(now_ms);
    }
    let world = world.borrow();
    let run_ms = world.now_ms as f64;
    let step_s = run_ms / 1e3 / plan.builder.num_steps as f64;
    let total: u64 = world.calls.values().sum();
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for actor in &actors {
        let name = match actor.process.role {
            Role::Builder => "builder",
            Role::Trainer => "trainer",
            Role::Replica(_) => "replica",
            Role::Reward(_) => "reward",
        };
        let share = world.calls[&actor.number] as f64 * CALL_MS / run_ms;
        let largest = shares.entry(name).or_default();
        *largest = largest.max(share);
    }
    let per_s = total as f64 / (run_ms / 1e3);
    eprintln!("steps of {step_s:.0} s, {per_s:.0} calls a second; share of a step by role: {shares:.4?}");
    assert!(per_s / SERVER_PER_S < 0.01, "{per_s} calls a second");
    for (role, share) in shares {
        assert!(share < 0.01, "{role}: {share} of its time");
    }
}
