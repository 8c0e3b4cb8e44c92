//! How long a poller sleeps when there is nothing to do: the longer nothing came, and the more a look costs, the longer,
//! so that many processes that wait for a slow one do not keep the filesystem's metadata server busy.

use std::time::{Duration, Instant};

/// The shortest sleep: also the longest delay of what comes at once.
const SHORTEST: Duration = Duration::from_millis(5);
/// The longest sleep, and the longest time that a replica whose engine computes does not look.
const LONGEST: Duration = Duration::from_secs(1);
/// A sleep is this part of the time that nothing came, so what comes is late by at most a fiftieth of its time.
const PART: u32 = 50;
/// A sleep takes at least as many times longer than a look, but is never more than [`COSTLY_PART`] of the time that
/// nothing came: on a slow filesystem, or a busy machine, what comes is late by at most a tenth of its time.
const IDLE_COST: u32 = 100;
/// See [`IDLE_COST`].
const COSTLY_PART: u32 = 10;
/// The same while an engine computes, which stands still in the meantime.
const BUSY_COST: u32 = 1000;

/// Looks among which the cheapest says what one costs.
pub(crate) const NUM_COSTS: usize = 4;

/// Sleeps between polls.
#[derive(Debug)]
pub struct Idle {
    since: Instant,
    began: Instant,
    costs: [Duration; NUM_COSTS],
}

impl Default for Idle {
    fn default() -> Self {
        Self { since: Instant::now(), began: Instant::now(), costs: [Duration::ZERO; NUM_COSTS] }
    }
}

impl Idle {
    /// A poll begins.
    pub fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// It ended.
    pub fn polled(&mut self) {
        self.costs.rotate_right(1);
        self.costs[0] = self.began.elapsed();
    }

    /// Something came.
    pub fn end(&mut self) {
        self.since = Instant::now();
    }

    /// Sleeps; nothing came.
    pub fn sleep(&self) {
        std::thread::sleep(pause(self.since.elapsed(), self.cost()));
    }

    /// How long a replica whose engine computes does not look.
    pub fn busy_pause(&self) -> Duration {
        busy_pause(self.cost())
    }

    /// What a look costs: the cheapest of the last few, since one that finds something reads and writes.
    fn cost(&self) -> Duration {
        self.costs.iter().copied().min().unwrap_or_default()
    }
}

/// The sleep after nothing came for so long, when a look costs so much.
pub(crate) fn pause(waited: Duration, cost: Duration) -> Duration {
    (waited / PART).max((cost * IDLE_COST).min(waited / COSTLY_PART)).clamp(SHORTEST, LONGEST)
}

/// The time between looks of a replica whose engine computes.
pub(crate) fn busy_pause(cost: Duration) -> Duration {
    (cost * BUSY_COST).clamp(10 * SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_at_once_is_seen_at_once_and_costly_looks_are_rare() {
        let s = Duration::from_secs;
        assert_eq!(pause(ms(0), ms(20)), SHORTEST);
        assert_eq!(pause(ms(100), ms(20)), ms(10), "late by a tenth at most");
        assert_eq!(pause(s(5), ms(2)), ms(200));
        assert_eq!(pause(s(5), ms(0)), ms(100), "late by a fiftieth");
        assert_eq!(pause(s(5000), ms(0)), LONGEST);
        assert_eq!(busy_pause(ms(0)), ms(50));
        assert_eq!(busy_pause(s(1)), LONGEST);
    }

    #[test]
    fn a_look_that_found_much_does_not_make_looks_costly() {
        let mut idle = Idle { costs: [ms(900), ms(2), ms(3), ms(2)], ..Idle::default() };
        assert_eq!(idle.cost(), ms(2));
        idle.begin();
        idle.polled();
        assert!(idle.cost() < ms(2) && idle.costs[1] == ms(900), "{idle:?}");
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}
