//! The deterministic simulator: the owners' machines under random schedules on a filesystem that misbehaves.

mod files;
mod format;
mod ledger;
mod load;
mod oracle;
mod plan;
mod process;
mod schedule;
mod unfinished;
mod weights;

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
    /// The builder asks for no group twice.
    NeverAskAgain,
    /// Builder, replicas, workers and trainer go on after their successors have started.
    SkipFencing,
    /// The trainer trains on in a pause.
    IgnorePause,
    /// The builder joins a column whatever tokens it was computed for.
    JoinBlindly,
    /// A builder that starts does not read what earlier steps say.
    ForgetHistory,
    /// Pruning takes versions whose changes others tell.
    BreakChains,
    /// A checkpoint does not put on disk what its run may ask for.
    LeaveInMemory,
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
    let totals: [AtomicU64; 19] = Default::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds().end {
                        break;
                    }
                    match catch_unwind(AssertUnwindSafe(|| schedule::run_seed(seed, Fault::None))) {
                        Ok(tally) => {
                            let tokens = tally.tokens;
                            let counts = [
                                tally.turns,
                                tally.deaths,
                                tally.zombies,
                                tally.drains,
                                tally.stops,
                                tally.saves,
                                tally.pauses,
                                tally.reboots,
                                tokens.trained,
                                tokens.masked,
                                tokens.refused,
                                tokens.expired,
                                tokens.surplus,
                                tokens.carried,
                                tokens.reused,
                                tokens.replaced,
                                tokens.continued,
                                tokens.chosen,
                                tokens.staged,
                            ];
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
    let [turns, accidents @ ..] = totals.map(AtomicU64::into_inner);
    let [deaths, zombies, drains, stops, saves, pauses, reboots, tokens @ ..] = accidents;
    eprintln!(
        "{turns} turns, {deaths} deaths, {zombies} zombies, {drains} drains, {stops} stops of the run, \
         {saves} checkpoints asked for, {pauses} pauses, {reboots} reboots; tokens trained, masked, refused, expired, surplus, carried, \
         trained again, replaced, continued, chosen by a curriculum, of a stage begun by a metric: {tokens:?}"
    );
    let is_short = seeds().count() < 1000;
    assert!(
        is_short || accidents.iter().all(|count| *count > 100),
        "the accidents did not happen, or no token had one of the fates"
    );
}

#[test]
fn a_seed_repeats_its_schedule() {
    for seed in 0..20 {
        let counts = |_| {
            let tally = schedule::run_seed(seed, Fault::None);
            (tally.turns, tally.deaths, tally.zombies, tally.drains)
        };
        let [first, second] = [0, 1].map(counts);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn a_step_whose_groups_are_all_refused_ends_with_65_and_the_histogram() {
    for seed in 0..50 {
        let mut plan = plan::Plan::draw(seed, Fault::None);
        plan.builder.has_filter = true;
        plan.builder.max_groups = 12;
        plan.refuses_all = true;
        let error = schedule::run(&plan).expect_err("no step can be filled");
        assert_eq!(error.exit_code(), 65, "seed {seed}: {error}");
        let text = error.to_string();
        let count = |reason: &str| -> usize {
            let (_, rest) = text.split_once(&format!("{reason}: ")).unwrap_or_else(|| panic!("{text}"));
            rest.split([',', ')']).next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
        };
        let refused = count("too_long") + count("zero_std");
        assert!(text.starts_with(&format!("step 0: {refused} groups refused (")), "{text}");
        assert!(refused > 12 - plan.builder.num_groups && text.contains("max_groups 12\nhint: "), "{text}");
    }
}

/// Runs schedules with a mistake in until one breaks a property, and gives back how it was noticed.
fn noticed(fault: Fault) -> Option<String> {
    (0..2000).find_map(|seed| {
        let cause = catch_unwind(AssertUnwindSafe(|| schedule::run_seed(seed, fault))).err()?;
        Some(cause.downcast_ref::<String>().cloned().unwrap_or_default())
    })
}

#[test]
fn each_deliberate_mistake_is_noticed() {
    for (fault, word) in [
        (Fault::IgnoreStaleness, "staleness"),
        (Fault::TrainTwice, "consumed on this lineage"),
        (Fault::ReplaceCommits, "was changed after its commit"),
        (Fault::NeverAskAgain, "stuck after"),
        (Fault::SkipFencing, "goes on after its successor"),
        (Fault::IgnorePause, "in a pause"),
        (Fault::JoinBlindly, "computed for other tokens"),
        (Fault::ForgetHistory, "chosen by another history"),
        (Fault::BreakChains, "is broken"),
        (Fault::LeaveInMemory, "stuck after"),
    ] {
        let how = noticed(fault).unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        assert!(how.contains(word), "{fault:?} was noticed as: {how}");
    }
}
