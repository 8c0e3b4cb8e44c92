//! What measuring itself costs: the time this process spent in this crate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// The time this process has spent here so far.
pub fn spent() -> Duration {
    Duration::from_nanos(SPENT_NS.load(Ordering::Relaxed))
}

/// Counts the time `work` takes.
pub fn counted<T>(work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    SPENT_NS.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    done
}
