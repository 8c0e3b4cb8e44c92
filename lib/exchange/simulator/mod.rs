//! The deterministic simulator: the owners' machines under random schedules on a filesystem that misbehaves.

mod files;
mod format;
mod oracle;
mod process;
mod schedule;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A deliberate mistake, to prove that the properties can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The builder masks nothing.
    IgnoreStaleness,
    /// The trainer trains the last step of its checkpoint again.
    TrainTwice,
    /// A commit replaces an earlier one instead of losing.
    ReplaceCommits,
}

/// Seeds of the ordinary run; `SLIME_SIM_SEED` runs one alone, `SLIME_SIM_SCHEDULES` sets how many.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("SLIME_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLIME_SIM_SCHEDULES").unwrap_or(10_000),
    }
}

#[test]
fn ten_thousand_random_schedules_keep_the_properties() {
    let next = AtomicU64::new(seeds().start);
    let totals = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds().end {
                        break;
                    }
                    match catch_unwind(AssertUnwindSafe(|| schedule::run(seed, Fault::None))) {
                        Ok(tally) => {
                            let counts = [tally.turns, tally.deaths, tally.zombies];
                            totals.iter().zip(counts).for_each(|(t, c)| {
                                t.fetch_add(c, Ordering::Relaxed);
                            });
                        }
                        Err(cause) => {
                            next.store(u64::MAX / 2, Ordering::Relaxed);
                            let text = cause.downcast_ref::<String>().cloned().unwrap_or_default();
                            panic!("seed {seed}: {text} (SLIME_SIM_SEED={seed} repeats it)");
                        }
                    }
                }
            });
        }
    });
    let [turns, deaths, zombies] = totals.map(AtomicU64::into_inner);
    eprintln!("{turns} turns, {deaths} deaths, {zombies} zombies");
    assert!(seeds().count() < 1000 || (deaths > 1000 && zombies > 1000), "the accidents did not happen");
}

#[test]
fn a_seed_repeats_its_schedule() {
    for seed in 0..20 {
        let counts = |_| {
            let tally = schedule::run(seed, Fault::None);
            (tally.turns, tally.deaths, tally.zombies)
        };
        let [first, second] = [0, 1].map(counts);
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Runs schedules with a mistake in until one breaks a property, and gives back how it was noticed.
fn noticed(fault: Fault) -> Option<String> {
    (0..2000).find_map(|seed| {
        let cause = catch_unwind(AssertUnwindSafe(|| schedule::run(seed, fault))).err()?;
        Some(cause.downcast_ref::<String>().cloned().unwrap_or_default())
    })
}

#[test]
fn each_deliberate_mistake_is_noticed() {
    for (fault, word) in [
        (Fault::IgnoreStaleness, "staleness"),
        (Fault::TrainTwice, "consumed on this lineage"),
        (Fault::ReplaceCommits, "was changed after its commit"),
    ] {
        let how = noticed(fault).unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        assert!(how.contains(word), "{fault:?} was noticed as: {how}");
    }
}
