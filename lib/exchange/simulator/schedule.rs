//! One random schedule: accidents drawn from a seed, run to the end or to a bound.

use std::cell::RefCell;
use std::rc::Rc;

use rand::Rng;
use slime_config::paths;

use super::Fault;
use super::files::{Chances, World};
use super::ledger::Totals;
use super::oracle::Oracle;
use super::plan::Plan;
use super::process::{Process, Role, Turn};
use crate::Result;

/// Polls after which a schedule counts as stuck; undisturbed ones need about 1,000.
const MAX_TURNS: u32 = 60_000;

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
    /// Checkpoints that were asked for.
    pub saves: u64,
    /// Pauses.
    pub pauses: u64,
    /// Moments at which the node lost its memory and all processes.
    pub reboots: u64,
    /// What became of the tokens.
    pub tokens: Totals,
}

/// Runs the schedule of a seed, which nothing may stop.
pub(super) fn run_seed(seed: u64, fault: Fault) -> Tally {
    run(&Plan::draw(seed, fault)).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a schedule to its end, or to an error that no restart cures; a broken property is a panic.
pub(super) fn run(plan: &Plan) -> Result<Tally> {
    let world = World::new(plan.seed ^ 0x5eed, plan.chances);
    world.borrow_mut().replaces_commits = plan.fault == Fault::ReplaceCommits;
    let mut run = Run {
        plan,
        world,
        oracle: Oracle::default(),
        tally: Tally::default(),
        num_processes: 0,
        processes: Vec::new(),
        starts: plan.roles().into_iter().map(|role| (0, role)).collect(),
        is_stopping: false,
        paused_until_ms: None,
    };
    for _ in 0..MAX_TURNS {
        let luck = run.draw();
        run.stop(&luck);
        run.wish(&luck);
        run.reboot(&luck);
        run.start_due(luck.now_ms)?;
        if !run.processes.is_empty() {
            run.turn(&luck)?;
        } else if run.starts.is_empty() {
            break;
        }
    }
    let is_done = run.world.borrow().truth(paths::DONE).is_some();
    assert!(
        is_done && run.starts.is_empty(),
        "stuck after {} turns at {} ms with {} of {} steps committed",
        run.tally.turns,
        run.world.borrow().now_ms,
        run.oracle.num_committed(),
        plan.builder.num_steps
    );
    run.tally.tokens = run.oracle.totals();
    Ok(run.tally)
}

struct Run<'a> {
    plan: &'a Plan,
    world: Rc<RefCell<World>>,
    oracle: Oracle,
    tally: Tally,
    num_processes: u32,
    processes: Vec<Process>,
    /// Owners that start at their times.
    starts: Vec<(u64, Role)>,
    is_stopping: bool,
    paused_until_ms: Option<u64>,
}

/// What is drawn for one turn.
#[expect(clippy::struct_excessive_bools, reason = "the accidents are independent")]
struct Luck {
    now_ms: u64,
    pick: usize,
    is_double: bool,
    is_drain: bool,
    is_stop: bool,
    is_save: bool,
    is_pause: bool,
    is_reboot: bool,
}

impl Run<'_> {
    fn draw(&mut self) -> Luck {
        self.tally.turns += 1;
        let mut world = self.world.borrow_mut();
        let rng = &mut world.rng;
        let (passed, pick) = (rng.random_range(1..=3), rng.random::<u32>() as usize);
        let (is_double, is_drain) = (rng.random_ratio(1, 600), rng.random_ratio(1, 600));
        let is_stop = rng.random_ratio(1, 4000);
        let (is_save, is_pause) = (rng.random_ratio(1, 400), rng.random_ratio(1, 1500));
        let is_reboot = rng.random_ratio(1, 3000);
        world.now_ms += passed;
        let is_wild = world.now_ms < self.plan.calm_ms;
        if !is_wild {
            world.chances = Chances { delay_ms: self.plan.chances.delay_ms, ..Chances::default() };
        }
        let (is_double, is_drain, is_stop) = (is_double && is_wild, is_drain && is_wild, is_stop && is_wild);
        let (is_save, is_pause, is_reboot) = (is_save && is_wild, is_pause && is_wild, is_reboot && is_wild);
        Luck { now_ms: world.now_ms, pick, is_double, is_drain, is_stop, is_save, is_pause, is_reboot }
    }

    /// Somebody asks for a checkpoint, or pauses the run for a while.
    fn wish(&mut self, luck: &Luck) {
        let mut world = self.world.borrow_mut();
        if luck.is_save {
            self.tally.saves += 1;
            world.write_foreign(paths::SAVE);
        }
        if luck.is_pause && self.paused_until_ms.is_none() {
            self.tally.pauses += 1;
            world.write_foreign(paths::PAUSE);
            self.paused_until_ms = Some(luck.now_ms + world.rng.random_range(1..1000));
        }
        if self.paused_until_ms.is_some_and(|until_ms| luck.now_ms >= until_ms) {
            self.paused_until_ms = None;
            world.remove_foreign(paths::PAUSE);
        }
    }

    /// All processes are gone, and what was in memory with them.
    fn reboot(&mut self, luck: &Luck) {
        if !luck.is_reboot {
            return;
        }
        self.tally.reboots += 1;
        self.world.borrow_mut().memory.clear();
        while let Some(index) = self.processes.len().checked_sub(1) {
            self.end(index, luck.now_ms);
        }
    }

    /// The run as a whole is stopped, and started again when everybody has ended.
    fn stop(&mut self, luck: &Luck) {
        let mut world = self.world.borrow_mut();
        if luck.is_stop && !self.is_stopping {
            self.is_stopping = true;
            self.tally.stops += 1;
            world.write_foreign(paths::STOP);
        }
        if self.is_stopping {
            // What ended is not started again before the run is.
            self.starts.clear();
            if self.processes.is_empty() {
                self.is_stopping = false;
                world.remove_foreign(paths::STOP);
                if world.truth(paths::DONE).is_none() {
                    self.starts = self.plan.roles().into_iter().map(|role| (luck.now_ms + 1, role)).collect();
                }
            }
        }
    }

    fn start_due(&mut self, now_ms: u64) -> Result<()> {
        let starts = std::mem::take(&mut self.starts);
        let (due, later): (Vec<_>, Vec<_>) = starts.into_iter().partition(|(at, _)| *at <= now_ms);
        self.starts = later;
        for (_, role) in due {
            self.num_processes += 1;
            match Process::start(&self.world, self.num_processes, role, self.plan)? {
                Some(process) => self.processes.push(process),
                None => self.starts.push((now_ms + 20, role)),
            }
        }
        Ok(())
    }

    /// One process has its turn.
    fn turn(&mut self, luck: &Luck) -> Result<()> {
        let index = luck.pick % self.processes.len();
        let process = &mut self.processes[index];
        if process.frozen_until.is_some_and(|until| luck.now_ms < until) {
            return Ok(());
        }
        let role = process.role;
        // A frozen poll is led back to where it stopped: the wish comes after it.
        if luck.is_drain && process.frozen_until.is_none() {
            process.drain();
        }
        let turn = process.turn(&self.world, self.plan, &mut self.oracle)?;
        self.oracle.watch(&self.world.borrow());
        match turn {
            Turn::Alive => {
                let is_same = |p: &Process| p.role == role && p.frozen_until.is_some();
                if luck.is_double && !self.processes.iter().any(is_same) {
                    self.tally.zombies += 1;
                    self.replace(role, luck.now_ms, 1);
                }
            }
            Turn::Frozen => {
                self.tally.zombies += 1;
                let away = self.world.borrow_mut().rng.random_range(1..2000);
                self.processes[index].frozen_until = Some(luck.now_ms + away);
                self.replace(role, luck.now_ms, 300);
            }
            Turn::Gone => {
                self.tally.deaths += 1;
                self.end(index, luck.now_ms);
            }
            Turn::Finished if self.world.borrow().truth(paths::DONE).is_some() => {
                self.processes.swap_remove(index);
            }
            Turn::Finished => {
                self.tally.drains += 1;
                self.end(index, luck.now_ms);
            }
        }
        Ok(())
    }

    /// A process is gone; its owner starts again unless another process has it.
    fn end(&mut self, index: usize, now_ms: u64) {
        let role = self.processes.swap_remove(index).role;
        if !self.processes.iter().any(|process| process.role == role) {
            self.replace(role, now_ms, 100);
        }
    }

    fn replace(&mut self, role: Role, now_ms: u64, latest: u64) {
        let at = now_ms + self.world.borrow_mut().rng.random_range(1..=latest);
        self.starts.push((at, role));
    }
}
