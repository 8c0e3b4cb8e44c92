//! What the targets share: their inputs, and the bound of the time that one row may take.

pub mod inputs;

use std::collections::HashMap;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slime_verifier::{RewardSet, Row};

/// No row may take longer, in CPU time. An ordinary build has a bound of 100 ms; one that counts coverage and checks
/// assertions is some three times slower.
const MAX_TIME: Duration = Duration::from_millis(300);

/// Scores a row under a type and panics where that took longer than a row may.
pub fn score(kind: &str, row: Row<'_>) {
    static START: Once = Once::new();
    static SETS: Mutex<Option<HashMap<String, RewardSet>>> = Mutex::new(None);
    // One thread, so that coverage belongs to its input.
    START.call_once(|| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .use_current_thread()
            .build_global()
            .expect("rayon starts once");
    });
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    let set = sets
        .get_or_insert_default()
        .entry(kind.to_owned())
        .or_insert_with(|| RewardSet::parse(&[kind]).expect("a known type"));
    within(kind, || drop(set.try_score(&[row])));
}

/// Runs `work` and panics where it took longer than a row may.
pub fn within(what: &str, work: impl FnOnce()) {
    let start = cpu_time();
    work();
    let taken = cpu_time().saturating_sub(start);
    assert!(taken <= MAX_TIME, "{what} took {taken:?} of CPU time, more than {MAX_TIME:?}");
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
