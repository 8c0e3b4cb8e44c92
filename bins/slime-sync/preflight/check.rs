//! One check of a node: what was expected, what was got, and how bad the difference is.

use std::fmt::Display;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How bad it is, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The job may run; somebody should know.
    Warn,
    /// The node is not fit for the job.
    Bad,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at, such as `free_space`.
    pub name: String,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub got: String,
    /// What should have been; absent where all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What can be done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    /// All is well.
    pub fn ok(name: &str, got: impl Display) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::Ok, got: got.to_string(), expected: None, hint: None }
    }

    /// Somebody should know.
    pub fn warn(name: &str, got: impl Display, expected: impl Display, hint: &str) -> Self {
        Self::judged(name, Verdict::Warn, got, expected, hint)
    }

    /// Not fit for the job.
    pub fn bad(name: &str, got: impl Display, expected: impl Display, hint: &str) -> Self {
        Self::judged(name, Verdict::Bad, got, expected, hint)
    }

    /// As bad as `verdict` says.
    pub fn judged(
        name: &str,
        verdict: Verdict,
        got: impl Display,
        expected: impl Display,
        hint: &str,
    ) -> Self {
        let (got, expected) = (got.to_string(), Some(expected.to_string()));
        Self { name: name.to_owned(), verdict, got, expected, hint: Some(hint.to_owned()) }
    }
}

/// A check that runs on its own thread: a file system or a driver that hangs stops no other check.
pub struct Probe {
    name: &'static str,
    checks: Receiver<Vec<Check>>,
    started: Instant,
    deadline: Duration,
}

impl Probe {
    /// Starts `body`, which has until `deadline`.
    pub fn start(
        name: &'static str,
        deadline: Duration,
        body: impl FnOnce() -> Vec<Check> + Send + 'static,
    ) -> Self {
        let (sender, checks) = channel();
        // Without a thread the sender is gone, which `finish` tells; after the deadline nobody listens any more.
        let _ = Builder::new().name(name.to_owned()).spawn(move || sender.send(body()));
        Self { name, checks, started: Instant::now(), deadline }
    }

    /// What the check found, or that it did not end. A thread that hangs is left behind.
    pub fn finish(self) -> Vec<Check> {
        let left = self.deadline.saturating_sub(self.started.elapsed());
        self.checks.recv_timeout(left).unwrap_or_else(|error| {
            let got = match error {
                RecvTimeoutError::Timeout => format!("no answer in {:.1} s", self.deadline.as_secs_f64()),
                RecvTimeoutError::Disconnected => "the check broke off".to_owned(),
            };
            vec![Check::bad(self.name, got, "an answer", "look at the file systems and drivers of the node")]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_hangs_or_panics_is_bad() {
        let (_hold, never) = channel::<()>();
        let probe = Probe::start("disk", Duration::from_millis(20), move || {
            let _ = never.recv();
            Vec::new()
        });
        let checks = probe.finish();
        assert_eq!((checks[0].verdict, checks[0].got.as_str()), (Verdict::Bad, "no answer in 0.0 s"));
        let probe = Probe::start("disk", Duration::from_secs(60), || panic!("a panic on purpose"));
        assert_eq!(probe.finish()[0].got, "the check broke off");
        let probe = Probe::start("disk", Duration::from_secs(60), || vec![Check::ok("disk", "fine")]);
        assert_eq!(probe.finish(), [Check::ok("disk", "fine")]);
    }
}
