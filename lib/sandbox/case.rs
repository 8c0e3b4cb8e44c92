//! One case: what is run with which limits, and what became of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::native::Answer;
pub use crate::plan::Build;
use crate::wire;

/// What a case executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A program with its arguments, the first one its path.
    Program(&'a [String]),
    /// A function of what the interpreter's zygote preloaded.
    Function(&'a str),
}

/// One case. Its descriptors are stdin, stdout, stderr and then, those that there are, in this order: payload, report,
/// channel.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// What is executed.
    pub entry: Entry<'a>,
    /// What it reads from stdin.
    pub stdin: &'a [u8],
    /// A file it can read.
    pub payload: Option<&'a [u8]>,
    /// A pipe it can write besides stdout and stderr.
    pub has_report: bool,
    /// A socket to another case.
    pub channel: Option<BorrowedFd<'a>>,
    /// What it may use.
    pub limits: &'a Limits,
    /// What it may do with the build folder.
    pub build: Build,
}

impl<'a> Case<'a> {
    /// A case without stdin, payload, report and channel, for which the build folder is read-only.
    pub fn new(entry: Entry<'a>, limits: &'a Limits) -> Self {
        Self {
            entry,
            stdin: &[],
            payload: None,
            has_report: false,
            channel: None,
            limits,
            build: Build::Read,
        }
    }
}

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// It ran longer than the wall time allows.
    WallTime,
    /// It used more than the CPU time allows.
    CpuTime,
    /// It wrote more than the output limit allows.
    Output,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Signalled(signal) => write!(f, "signal {signal}"),
            Self::WallTime => f.write_str("out of time"),
            Self::CpuTime => f.write_str("out of CPU time"),
            Self::Output => f.write_str("too much output"),
        }
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to stdout, at most the output limit.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, at most the output limit.
    pub stderr: Vec<u8>,
    /// What it wrote to the report, at most the output limit.
    pub report: Vec<u8>,
    /// CPU time of the case and of the processes it waited for.
    pub cpu: Duration,
    /// From the request to the end.
    pub wall: Duration,
    /// Largest resident set of one of its processes, bytes.
    pub max_rss_bytes: u64,
}

/// Ends a running case.
#[derive(Debug)]
pub struct Killer(OwnedFd);

impl Killer {
    /// Ends it and everything it started; one that has ended stays as it is.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// A case that runs.
#[derive(Debug)]
pub struct Running {
    pub(crate) zygote: OwnedFd,
    pub(crate) kind: &'static str,
    pub(crate) pidfd: OwnedFd,
    /// Its stdout, stderr and report.
    pub(crate) pipes: Vec<OwnedFd>,
    pub(crate) began: Instant,
    pub(crate) limits: Limits,
    pub(crate) is_busy: Arc<AtomicBool>,
}

/// After a case was killed its zygote has this long to say so.
const GRACE: Duration = Duration::from_secs(10);

impl Running {
    /// What ends this case from elsewhere.
    pub fn killer(&self) -> Result<Killer> {
        self.pidfd.try_clone().map(Killer).map_err(|source| Error::Os { call: "dup", source })
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// A zygote that ends first ([`Error::Died`]), an isolation that could not be set up.
    pub fn wait(self) -> Result<Report> {
        let mut buffers: Vec<Vec<u8>> = vec![Vec::new(); self.pipes.len()];
        let mut open: Vec<bool> = vec![true; self.pipes.len()];
        let mut verdict: Option<Outcome> = None;
        let mut ended = None;
        let mut deadline = self.began + self.limits.wall;
        while ended.is_none() || open.contains(&true) {
            let now = Instant::now();
            if now >= deadline {
                if verdict.is_some() || ended.is_some() {
                    break;
                }
                verdict = Some(self.end(Outcome::WallTime, &mut deadline));
                continue;
            }
            let ready = self.poll(&open, ended.is_none(), deadline - now)?;
            for at in ready {
                let Some(pipe) = self.pipes.get(at) else {
                    let (status, cpu_us, max_rss_kib) = self.read_end()?;
                    ended = Some((
                        status,
                        Duration::from_micros(cpu_us),
                        max_rss_kib * 1024,
                        self.began.elapsed(),
                    ));
                    deadline = Instant::now() + GRACE;
                    continue;
                };
                let buffer = &mut buffers[at];
                open[at] = read_some(pipe, buffer)?;
                if buffer.len() > self.limits.output_bytes {
                    buffer.truncate(self.limits.output_bytes);
                    open[at] = false;
                    if verdict.is_none() && ended.is_none() {
                        verdict = Some(self.end(Outcome::Output, &mut deadline));
                    }
                }
            }
        }
        let Some((status, cpu, max_rss_bytes, wall)) = ended else { return Err(self.died()) };
        self.is_busy.store(false, Ordering::Relaxed);
        let outcome = verdict.unwrap_or_else(|| outcome(status, cpu, &self.limits));
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().unwrap_or_default();
        Ok(Report { outcome, stdout: next(), stderr: next(), report: next(), cpu, wall, max_rss_bytes })
    }

    fn end(&self, outcome: Outcome, deadline: &mut Instant) -> Outcome {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        *deadline = Instant::now() + GRACE;
        outcome
    }

    /// The pipes that can be read, and the zygote as the number behind them.
    fn poll(&self, open: &[bool], wants_end: bool, left: Duration) -> Result<Vec<usize>> {
        let places: Vec<usize> = (0..self.pipes.len())
            .filter(|at| open.get(*at) == Some(&true))
            .chain(wants_end.then_some(self.pipes.len()))
            .collect();
        let fd = |at: &usize| self.pipes.get(*at).map_or(self.zygote.as_fd(), AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> =
            places.iter().map(|at| PollFd::from_borrowed_fd(fd(at), PollFlags::IN)).collect();
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("poll")(errno)),
        }
        let ready = places.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(at, _)| *at).collect())
    }

    fn read_end(&self) -> Result<(i32, u64, u64)> {
        let message = wire::receive(&self.zygote).map_err(Error::os("recvmsg"))?;
        match message.and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()) {
            Some(Answer::Ended { status, cpu_us, max_rss_kib }) => Ok((status, cpu_us, max_rss_kib)),
            Some(Answer::Failed { problem }) => {
                self.is_busy.store(false, Ordering::Relaxed);
                Err(Error::Setup { problem })
            }
            _ => Err(self.died()),
        }
    }

    fn died(&self) -> Error {
        Error::Died { kind: self.kind, num_deaths: 1 }
    }
}

/// Reads what is there; false at the end.
fn read_some(pipe: &OwnedFd, buffer: &mut Vec<u8>) -> Result<bool> {
    let mut part = [0; 1 << 14];
    match rustix::io::read(pipe, &mut part) {
        Ok(len) => {
            buffer.extend_from_slice(part.get(..len).unwrap_or_default());
            Ok(len > 0)
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(true),
        Err(errno) => Err(Error::os("read")(errno)),
    }
}

fn outcome(status: i32, cpu: Duration, limits: &Limits) -> Outcome {
    if libc::WIFEXITED(status) {
        return Outcome::Exited(libc::WEXITSTATUS(status));
    }
    let signal = libc::WTERMSIG(status);
    // The limit of CPU time warns with a signal that the first process of a namespace does not hear, then kills.
    if signal == libc::SIGXCPU || signal == libc::SIGKILL && cpu >= limits.cpu {
        return Outcome::CpuTime;
    }
    Outcome::Signalled(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_tells_codes_signals_and_the_limit_of_time() {
        let limits = Limits { cpu: Duration::from_secs(1), ..Limits::default() };
        let of = |status, cpu_s| outcome(status, Duration::from_secs(cpu_s), &limits);
        assert_eq!(of(3 << 8, 0), Outcome::Exited(3));
        assert_eq!(of(libc::SIGSEGV, 0), Outcome::Signalled(libc::SIGSEGV));
        assert_eq!(of(libc::SIGKILL, 0), Outcome::Signalled(libc::SIGKILL));
        assert_eq!(of(libc::SIGKILL, 1), Outcome::CpuTime);
        assert_eq!(of(libc::SIGXCPU, 0), Outcome::CpuTime);
        assert_eq!(Outcome::CpuTime.to_string(), "out of CPU time");
    }
}
