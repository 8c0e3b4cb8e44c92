//! What every thread of this process is doing, asked from outside of it: each is interrupted by a signal and notes its
//! own return addresses, which are given names afterwards.
//!
//! For people who look at a process that hangs. A thread that cannot be interrupted is told with the kernel's words.
#![expect(unsafe_code, reason = "signal handlers and signals to single threads")]

use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Ignored unless somebody catches it, and used by nobody else here, so a late one harms nobody.
const ASK: libc::c_int = libc::SIGURG;
/// Return addresses kept of one thread.
const MAX_FRAMES: usize = 96;
/// The innermost frames are the unwinder's, the handler's and the kernel's way into it.
const OWN_FRAMES: usize = 4;
/// How long a thread may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The answer of the one thread that is asked: written by its handler, read when `IS_ANSWERED` is set.
static FRAMES: [AtomicUsize; MAX_FRAMES] = [const { AtomicUsize::new(0) }; MAX_FRAMES];
static NUM_FRAMES: AtomicUsize = AtomicUsize::new(0);
static IS_ASKED: AtomicBool = AtomicBool::new(false);
static IS_ANSWERED: AtomicBool = AtomicBool::new(false);
/// One dump at a time.
static DUMP: Mutex<()> = Mutex::new(());

extern "C" fn answer(_signal: libc::c_int) {
    if !IS_ASKED.swap(false, Ordering::AcqRel) {
        return;
    }
    let mut num_frames = 0;
    // SAFETY: only one thread at a time gets here, since the asker waits for the answer before it asks the next; the
    // addresses go into memory that exists already.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            FRAMES[num_frames].store(frame.ip() as usize, Ordering::Relaxed);
            num_frames += 1;
            num_frames < MAX_FRAMES
        });
    }
    NUM_FRAMES.store(num_frames, Ordering::Relaxed);
    IS_ANSWERED.store(true, Ordering::Release);
}

/// The stacks of all threads but the calling one, as text; names need the binary's symbols.
///
/// In a process that shall go on (`is_gentle`) only threads that sleep are asked: one inside a matrix product may not be
/// interrupted (see [`crate::drain`]).
pub fn stacks(is_gentle: bool) -> String {
    let _guard = DUMP.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut text = String::new();
    // SAFETY: the handler calls only what it may: atomics and the unwinder.
    let is_caught = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = answer as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(ASK, &raw const action, std::ptr::null_mut()) == 0
    };
    for thread in threads_of("self") {
        // SAFETY: takes nothing and returns a number.
        if thread == unsafe { libc::gettid() } {
            continue;
        }
        let name = kernel_word("self", thread, "comm");
        let _ = writeln!(text, "thread {thread} {name}");
        let may_ask = is_caught && !(is_gentle && is_running(thread));
        match may_ask.then(|| ask(thread)).flatten() {
            Some(frames) => frames.into_iter().skip(OWN_FRAMES).for_each(|frame| text += &named(frame)),
            None => text += &kernel_view("self", thread),
        }
    }
    text
}

/// What the kernel tells about the threads of another process of this host, for one that cannot speak for itself.
pub fn kernel_stacks(pid: u32) -> String {
    let pid = pid.to_string();
    threads_of(&pid).into_iter().fold(String::new(), |text, thread| {
        text + &format!("thread {thread} {}\n", kernel_word(&pid, thread, "comm"))
            + &kernel_view(&pid, thread)
    })
}

/// Whether a thread of this process computes just now.
fn is_running(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
}

fn threads_of(pid: &str) -> Vec<libc::pid_t> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads: Vec<_> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

fn ask(thread: libc::pid_t) -> Option<Vec<usize>> {
    IS_ANSWERED.store(false, Ordering::Relaxed);
    IS_ASKED.store(true, Ordering::Release);
    // SAFETY: sends a signal that is caught to a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, ASK) };
    let asked = Instant::now();
    while !IS_ANSWERED.load(Ordering::Acquire) {
        if asked.elapsed() > PATIENCE {
            // Whoever comes to it now has come too late; one that has begun is waited for.
            if IS_ASKED.swap(false, Ordering::AcqRel) || asked.elapsed() > 4 * PATIENCE {
                return None;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let num_frames = NUM_FRAMES.load(Ordering::Relaxed);
    Some(FRAMES[..num_frames].iter().map(|frame| frame.load(Ordering::Relaxed)).collect())
}

/// One line for an address: function, and file and line where the binary knows them.
fn named(address: usize) -> String {
    let mut line = String::new();
    // An address to return to lies behind the call that it is about.
    let call = (address.max(1) - 1) as *mut std::ffi::c_void;
    backtrace::resolve(call, |symbol| {
        let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
        let _ = write!(line, "    {name}");
        if let (Some(file), Some(number)) = (symbol.filename(), symbol.lineno()) {
            let _ = write!(line, " ({}:{number})", file.display());
        }
        line.push('\n');
    });
    if line.is_empty() { format!("    {address:#x}\n") } else { line }
}

/// State, system call and where in the kernel.
fn kernel_view(pid: &str, thread: libc::pid_t) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("gone").trim();
    let (call, place) = (kernel_word(pid, thread, "syscall"), kernel_word(pid, thread, "wchan"));
    format!("    (kernel) state {state}, system call {call}, in {place}\n")
}

fn kernel_word(pid: &str, thread: libc::pid_t, file: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).unwrap_or_default();
    let word = text.split_whitespace().next().unwrap_or("?");
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[inline(never)]
    fn waits_in_a_function_with_this_name(wait: &mpsc::Receiver<()>) {
        let _ = std::hint::black_box(wait.recv());
    }

    #[test]
    fn a_waiting_thread_is_told_by_its_functions_and_goes_on() {
        let (go, wait) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sleeper".into());
        let thread = thread.spawn(move || waits_in_a_function_with_this_name(&wait)).unwrap();
        let started = Instant::now();
        // The thread may still be on its way there.
        while !stacks(true).contains("waits_in_a_function_with_this_name") {
            assert!(started.elapsed() < Duration::from_secs(20), "{}", stacks(true));
        }
        assert!(stacks(true).contains("sleeper"), "{}", stacks(true));
        go.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn a_stopped_process_is_told_by_the_kernel() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let started = Instant::now();
        let stop =
            std::process::Command::new("kill").args(["-STOP", &child.id().to_string()]).status().unwrap();
        assert!(stop.success());
        while !kernel_stacks(child.id()).contains("state T (stopped)") {
            assert!(started.elapsed() < Duration::from_secs(20), "{}", kernel_stacks(child.id()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(kernel_stacks(child.id()), "");
    }
}
