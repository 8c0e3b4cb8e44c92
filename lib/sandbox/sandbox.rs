//! The tool's end of the sandbox: starts the broker, finds the best tier, asks for zygotes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::broker::{self, Greeting, Start, Started};
use crate::case::{Case, Entry, Outcome};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::outer;
use crate::tier::{Promises, Standing, Tier};
use crate::wire;
use crate::zygote::{Kind, Zygote};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Less than this is an error.
    pub min: Tier,
    /// More than this is not tried.
    pub max: Tier,
}

impl Default for Options {
    /// At least the files of the user are protected.
    fn default() -> Self {
        Self { min: Tier::Landlock, max: Tier::Namespaces }
    }
}

/// A started sandbox; its broker ends with the last copy.
#[derive(Debug, Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    broker: Mutex<OwnedFd>,
    standing: Standing,
    num_restarts: AtomicU64,
}

impl Sandbox {
    /// Forks the broker and finds the best tier that works, by running an empty case in each.
    ///
    /// To be called while this process has one thread and has opened no device.
    ///
    /// # Errors
    /// [`Error::Threads`] when it is too late, [`Error::Tier`] when the machine allows less than `options.min`.
    pub fn start(options: Options) -> Result<Self> {
        let num_threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if num_threads != 1 {
            return Err(Error::Threads { num_threads });
        }
        let (tool, broker_end) = wire::pair()?;
        let pid = outer::fork(0).map_err(|source| Error::Os { call: "clone", source })?;
        if pid == 0 {
            drop(tool);
            broker::serve(&broker_end);
        }
        drop(broker_end);
        let greeting = wire::receive(&tool).map_err(|errno| Error::Broker(Some(errno.into())))?;
        let cgroup: Greeting =
            greeting.and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()).ok_or(Error::Broker(None))?;
        let standing = Standing {
            tier: options.max,
            promises: promises(Tier::Limits, false, false),
            reasons: Vec::new(),
            cgroup,
        };
        let mut inner = Inner { broker: Mutex::new(tool), standing, num_restarts: AtomicU64::new(0) };
        for tier in options.max.downwards() {
            inner.standing.tier = tier;
            let shared = Arc::new(inner);
            let tried = try_tier(&shared);
            // The zygote of the trial is gone, so this is the only copy again.
            inner = Arc::into_inner(shared).ok_or(Error::Broker(None))?;
            match tried {
                Ok(has_case_id) => {
                    let has_cgroup = inner.standing.cgroup.is_ok();
                    inner.standing.promises = promises(tier, has_case_id, has_cgroup);
                    break;
                }
                // A machine may refuse with an error or with a signal.
                Err(error @ (Error::Setup { .. } | Error::Died { .. })) if tier > Tier::Limits => {
                    let problem = error.to_string();
                    let problem = problem.strip_prefix("sandbox: ").unwrap_or(&problem);
                    inner.standing.reasons.push(format!("{tier} refused: {problem}"));
                }
                Err(error) => return Err(error),
            }
        }
        let reached = inner.standing.tier;
        if reached < options.min {
            let reasons = inner.standing.reasons.join("; ");
            return Err(Error::Tier { wanted: options.min, reached, reasons });
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What was reached.
    pub fn standing(&self) -> &Standing {
        &self.inner.standing
    }

    /// How many zygotes were started again because they had ended.
    pub fn num_restarts(&self) -> u64 {
        self.inner.num_restarts.load(Ordering::Relaxed)
    }

    /// A zygote, which starts with its first case.
    pub fn zygote(&self, kind: Kind) -> Zygote {
        Zygote::new(Arc::clone(&self.inner), kind)
    }
}

impl Inner {
    pub(crate) fn tier(&self) -> Tier {
        self.standing.tier
    }

    pub(crate) fn count_restart(&self) {
        self.num_restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the broker fork a zygote that gets these descriptors.
    pub(crate) fn ask(&self, start: &Start, fds: &[OwnedFd]) -> Result<Started> {
        let broker = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let gone = |errno: rustix::io::Errno| Error::Broker(Some(errno.into()));
        wire::send(&*broker, &serde_json::to_vec(start).unwrap_or_default(), &fds).map_err(gone)?;
        let answer = wire::receive(&*broker).map_err(gone)?;
        let started = answer.and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok());
        match started.ok_or(Error::Broker(None))? {
            Started::Failed { problem } => Err(Error::Setup { problem }),
            started @ Started::Zygote { .. } => Ok(started),
        }
    }
}

/// Runs an empty case; whether cases have a user of their own.
fn try_tier(inner: &Arc<Inner>) -> Result<bool> {
    let mut zygote = Zygote::new(Arc::clone(inner), Kind::native());
    let limits = Limits::default();
    let report = zygote.run(&Case::new(Entry::Program(&[]), &limits))?;
    match report.outcome {
        Outcome::Exited(0) => Ok(zygote.has_case_id()),
        outcome => Err(Error::Setup { problem: format!("an empty case ended with {outcome}") }),
    }
}

fn promises(tier: Tier, has_case_id: bool, has_cgroup: bool) -> Promises {
    // The kernel counts processes of each user but root.
    let is_counted = has_case_id || !rustix::process::geteuid().is_root();
    Promises {
        no_reading_outside: tier >= Tier::Landlock,
        no_writing_outside: tier >= Tier::Landlock,
        no_network: tier >= Tier::Seccomp,
        no_signals: tier >= Tier::Seccomp,
        no_other_processes: tier == Tier::Namespaces,
        bounded_processes: is_counted || has_cgroup,
        bounded_memory_in_all: has_cgroup,
        bounded_work_folder: tier == Tier::Namespaces,
    }
}
