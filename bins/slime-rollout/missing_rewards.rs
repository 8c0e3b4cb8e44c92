//! Notices that finished groups wait for rewards that do not come: says so, and in the end gives up.

use std::time::{Duration, Instant};

use slime_cli::{Failure, exit};
use slime_exchange::{ArrowFormat, StepBuilder};

/// Between two sentences about it.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How long nothing has moved.
pub struct MissingRewards {
    /// After so long the run ends; 0 is never.
    limit: Duration,
    since: Instant,
    told: Instant,
    /// Step, groups that are not judged, and those of them that are finished.
    standing: (u64, usize, usize),
}

impl MissingRewards {
    /// `limit_s` is `reward.patience_s`.
    pub fn new(limit_s: u64) -> Self {
        let now = Instant::now();
        Self { limit: Duration::from_secs(limit_s), since: now, told: now, standing: (0, 0, 0) }
    }

    /// Looks at the step builder after a poll.
    ///
    /// # Errors
    /// Nothing has moved for the limit.
    pub fn check(&mut self, builder: &StepBuilder<ArrowFormat>) -> Result<(), Failure> {
        let now = Instant::now();
        let unscored = builder.unscored();
        let standing = (builder.step(), builder.num_waiting(), unscored.map_or(0, |(_, num)| num));
        let Some((column, num)) = unscored.filter(|_| standing == self.standing) else {
            (self.standing, self.since, self.told) = (standing, now, now);
            return Ok(());
        };
        let waited = now - self.since;
        let message = format!(
            "step {}: {num} finished groups wait for the column {column} since {} s",
            builder.step(),
            waited.as_secs()
        );
        let hint = "is slime-reward --follow RUN running? its log says what it does";
        if !self.limit.is_zero() && waited >= self.limit {
            return Err(Failure::new(exit::UNAVAILABLE, message).with_hint(hint));
        }
        if now - self.told >= TELL_EVERY {
            self.told = now;
            tracing::warn!("{message}; {hint}");
        }
        Ok(())
    }
}
