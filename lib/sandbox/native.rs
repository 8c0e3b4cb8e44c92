//! The zygote of programs that are executed: a loop that forks a child for each case, confines it and executes its program.
#![expect(unsafe_code, reason = "forks, waits and executes")]

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::calls::{Call, perform};
use crate::filter::Filter;
use crate::outer::{self, fork, leave};
use crate::plan::Plan;
use crate::wire;

/// What a zygote is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// Run a case; its descriptors come along, stdin first.
    Run {
        /// How the child is confined.
        plan: Plan,
        /// The program and its arguments; with none an interpreter calls `function`, and our loop ends the case at once.
        argv: Vec<String>,
        /// `NAME=value`.
        env: Vec<String>,
        /// What an interpreter calls instead of executing a program.
        function: String,
    },
    /// Calls that the zygote makes itself: mounts that several cases share.
    Perform {
        /// The calls.
        calls: Vec<Call>,
    },
}

/// What a zygote answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// It waits for cases.
    Ready,
    /// A case runs; the descriptor that comes along ends it.
    Started,
    /// A case has ended.
    Ended {
        /// As `wait` tells it.
        status: i32,
        /// CPU time of the case and what it waited for, microseconds.
        cpu_us: u64,
        /// Largest resident set of a process of it, KiB.
        max_rss_kib: u64,
    },
    /// Calls were performed.
    Performed,
    /// Something of the isolation failed; no untrusted code ran.
    Failed {
        /// The call and its error.
        problem: String,
    },
}

/// Serves until the tool is gone.
pub(crate) fn serve(socket: &OwnedFd, filter: &Filter) -> ! {
    say(socket, &Answer::Ready, &[]);
    while let Ok(Some((message, fds))) = wire::receive(socket) {
        let answer = match serde_json::from_slice(&message) {
            Ok(Request::Run { plan, argv, env, .. }) => run(socket, &plan, &argv, &env, fds, filter),
            Ok(Request::Perform { calls }) => perform(&calls, filter).map(|()| Answer::Performed),
            Err(error) => Err(format!("a request that cannot be read: {error}")),
        };
        reap();
        say(socket, &answer.unwrap_or_else(|problem| Answer::Failed { problem }), &[]);
    }
    leave(0)
}

/// Tells the tool; one that is gone is noticed at the next request.
pub(crate) fn say(socket: &OwnedFd, answer: &Answer, fds: &[BorrowedFd<'_>]) {
    let _ = wire::send(socket, &serde_json::to_vec(answer).unwrap_or_default(), fds);
}

fn run(
    socket: &OwnedFd,
    plan: &Plan,
    argv: &[String],
    env: &[String],
    fds: Vec<OwnedFd>,
    filter: &Filter,
) -> Result<Answer, String> {
    let failed = |call: &'static str| move |error: rustix::io::Errno| format!("{call}: {error}");
    let (problems, problem_end) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))?;
    let (statuses, status_end) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))?;
    let pid = fork(plan.flags).map_err(|error| format!("clone: {error}"))?;
    if pid == 0 {
        drop((problems, statuses));
        let Err(problem) = keep_at(problem_end.as_fd(), PROBLEMS)
            .and_then(|()| case(plan, argv, env, fds, filter, status_end));
        // SAFETY: the descriptor was put there by the line above; if it was not, the write fails.
        let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(PROBLEMS) }, problem.as_bytes());
        leave(SETUP_FAILED);
    }
    drop((problem_end, status_end, fds));
    // SAFETY: opens a descriptor of our own child, which is not waited for before the end of this function.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd;
    if pidfd >= 0 {
        // SAFETY: a descriptor that was just opened and that nobody else owns.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        say(socket, &Answer::Started, &[pidfd.as_fd()]);
    }
    let problem = read_all(&problems);
    let (mut status, usage) = wait(pid)?;
    if let Ok(inner) = <[u8; 4]>::try_from(read_all(&statuses).as_slice()) {
        status = i32::from_ne_bytes(inner);
    }
    if pidfd < 0 {
        return Err("pidfd_open: needs Linux 5.3".to_owned());
    }
    if !problem.is_empty() {
        return Err(String::from_utf8_lossy(&problem).into_owned());
    }
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    Ok(Answer::Ended { status, cpu_us, max_rss_kib: usage.ru_maxrss as u64 })
}

/// Where the pipe for problems is while a case is being set up; it closes when the program is executed.
const PROBLEMS: RawFd = 99;
/// The exit code of a child whose setup failed; the text on the pipe counts.
const SETUP_FAILED: i32 = 125;

/// The child of a case; only a failure returns.
fn case(
    plan: &Plan,
    argv: &[String],
    env: &[String],
    fds: Vec<OwnedFd>,
    filter: &Filter,
    status_end: OwnedFd,
) -> Result<Infallible, String> {
    perform(&plan.enter, filter)?;
    if plan.flags != 0 {
        // The first process of a pid namespace ignores signals and inherits orphans: the program is its second.
        let pid = fork(0).map_err(|error| format!("clone: {error}"))?;
        if pid != 0 {
            first_process(pid, &status_end);
        }
    }
    drop(status_end);
    arrange(fds)?;
    perform(&plan.confine, filter)?;
    if argv.is_empty() {
        leave(0);
    }
    execute(argv, env)
}

/// Puts descriptors at 0, 1, 2, ...; they stay open over `exec`.
fn arrange(fds: Vec<OwnedFd>) -> Result<(), String> {
    let mut copies = Vec::new();
    for fd in fds {
        // The numbers that are filled below may be those of these values, so none of them is dropped from here on.
        let fd = fd.into_raw_fd();
        // SAFETY: duplicates an open descriptor to a number above all that are filled.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, PROBLEMS + 20) };
        if copy < 0 {
            return Err(format!("fcntl: {}", io::Error::last_os_error()));
        }
        copies.push(copy);
    }
    for (number, copy) in copies.into_iter().enumerate() {
        // SAFETY: overwrites a descriptor of this child, whose owners are not used any more.
        if unsafe { libc::dup2(copy, number as RawFd) } < 0 {
            return Err(format!("dup2: {}", io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Keeps a descriptor at this number until the next `exec`.
fn keep_at(fd: BorrowedFd<'_>, number: RawFd) -> Result<(), String> {
    // SAFETY: this child has opened nothing at that number.
    let kept = unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) };
    if kept < 0 { Err(format!("dup3: {}", io::Error::last_os_error())) } else { Ok(()) }
}

fn execute(argv: &[String], env: &[String]) -> Result<Infallible, String> {
    let closed = |words: &[String]| -> Result<Vec<CString>, String> {
        words
            .iter()
            .map(|word| CString::new(word.as_str()).map_err(|_| "a zero byte in argv".to_owned()))
            .collect()
    };
    let (argv, env) = (closed(argv)?, closed(env)?);
    let program = argv.first().ok_or("no program")?;
    outer::execute(program, &argv, &env);
    Err(format!("cannot execute {}: {}", program.to_string_lossy(), io::Error::last_os_error()))
}

/// Waits for the program as the first process of its namespace; with its end all others of the case end too.
fn first_process(program: libc::pid_t, status_end: &OwnedFd) -> ! {
    // SAFETY: makes the memory of this process unreadable for others, and closes descriptors that only the program needs.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        let kept = status_end.as_raw_fd() as u32;
        libc::syscall(libc::SYS_close_range, 0, kept.saturating_sub(1), 0);
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0);
    }
    let status = loop {
        let mut status = 0;
        // SAFETY: fills a number of this frame.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if pid == program {
            break status;
        }
        if pid < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            leave(126);
        }
    };
    let _ = rustix::io::write(status_end, &status.to_ne_bytes());
    leave(0)
}

fn wait(pid: libc::pid_t) -> Result<(i32, libc::rusage), String> {
    loop {
        let mut status = 0;
        // SAFETY: an all-zero rusage is valid, and both are filled by the call.
        let (waited, usage) = unsafe {
            let mut usage = std::mem::zeroed();
            (libc::wait4(pid, &raw mut status, 0, &raw mut usage), usage)
        };
        if waited == pid {
            return Ok((status, usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(format!("wait4: {error}"));
        }
    }
}

/// Ends what a case left behind: without a pid namespace, orphans become children of the zygote.
fn reap() {
    loop {
        // SAFETY: waits for any child without blocking.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => kill_children(),
            pid if pid > 0 => {}
            _ => return,
        }
    }
}

fn kill_children() {
    let me = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for entry in processes.flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in parentheses may hold anything; state and parent come behind its last one.
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let pid = entry.file_name().to_string_lossy().parse::<libc::pid_t>();
        if let (Some(parent), Ok(pid)) = (parent, pid)
            && parent == me
        {
            // SAFETY: a child of ours that was not waited for yet, so the number is still its.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    std::thread::sleep(std::time::Duration::from_micros(200));
}

fn read_all(pipe: &OwnedFd) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 512];
    loop {
        match rustix::io::read(pipe, &mut part) {
            Ok(0) => return all,
            Ok(len) => all.extend_from_slice(part.get(..len).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return all,
        }
    }
}
