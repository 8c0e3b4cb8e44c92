//! How long a poller sleeps when there is nothing to do: the longer nothing came, the longer, so that many processes
//! that wait for a slow one do not keep the filesystem's metadata server busy.

use std::time::{Duration, Instant};

/// The shortest sleep: also the longest delay of what comes at once.
const SHORTEST: Duration = Duration::from_millis(5);
/// The longest.
const LONGEST: Duration = Duration::from_millis(500);
/// A sleep is this part of the time that nothing came, so what comes is late by at most a fiftieth of its time.
const PART: u32 = 50;

/// Pause between polls of a replica whose engine computes: its steps take milliseconds.
pub const BUSY_POLL: Duration = Duration::from_secs(1);

/// Sleeps between polls.
#[derive(Debug)]
pub struct Idle {
    since: Instant,
}

impl Default for Idle {
    fn default() -> Self {
        Self { since: Instant::now() }
    }
}

impl Idle {
    /// Something came.
    pub fn end(&mut self) {
        self.since = Instant::now();
    }

    /// Sleeps; nothing came.
    pub fn sleep(&self) {
        std::thread::sleep(pause(self.since.elapsed()));
    }
}

/// The sleep after nothing came for so long.
pub(crate) fn pause(waited: Duration) -> Duration {
    (waited / PART).clamp(SHORTEST, LONGEST)
}
