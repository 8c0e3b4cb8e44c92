//! The wish to stop: USR2, USR1 and TERM set a flag that resident tools look at between steps; a second TERM
//! ends the process at once.
//!
//! No thread that computes runs a handler: caught inside oneDNN's matrix products on AVX-512, signals left a corrupt heap
//! (these kernels handle the stack pointer themselves), so a thread of their own gets them.
#![expect(unsafe_code, reason = "chooses the thread that gets signals")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;

static FLAGS: OnceLock<Flags> = OnceLock::new();

struct Flags {
    drain: Arc<AtomicBool>,
}

/// The exit code of a process that a second TERM ended: 128 + 15, as a shell reports it.
const TERMINATED: i32 = 128 + SIGTERM;

/// Catches the drain signals from now on; to be called before other threads are started, which inherit what is blocked.
/// One-shot tools do not call this, so TERM ends them as usual.
pub fn install() {
    FLAGS.get_or_init(|| {
        let drain = Arc::new(AtomicBool::new(false));
        let terminated = Arc::new(AtomicBool::new(false));
        // The conditional shutdown comes first, so that only the second TERM finds the flag set.
        let registered = flag::register_conditional_shutdown(SIGTERM, TERMINATED, Arc::clone(&terminated))
            .and_then(|_| flag::register(SIGTERM, terminated))
            .and_then(|_| flag::register(SIGTERM, Arc::clone(&drain)))
            .and_then(|_| flag::register(SIGUSR1, Arc::clone(&drain)))
            .and_then(|_| flag::register(SIGUSR2, Arc::clone(&drain)));
        if let Err(error) = registered {
            tracing::warn!("cannot catch signals, so this process cannot drain: {error}");
        }
        let receiver = std::thread::Builder::new().name("signals".to_owned());
        match receiver.spawn(|| {
            loop {
                std::thread::park();
            }
        }) {
            Ok(_) => block(),
            Err(error) => tracing::warn!("no thread for signals: {error}"),
        }
        Flags { drain }
    });
}

/// Leaves these signals to other threads, now and in all threads that this one starts.
fn block() {
    // SAFETY: fills a set of this frame, and changes the calling thread's mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [SIGTERM, SIGUSR1, SIGUSR2, SIGQUIT] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Whether a drain was asked for; the first call starts catching the signals.
pub fn requested() -> bool {
    install();
    FLAGS.get().is_some_and(|flags| flags.drain.load(Ordering::Relaxed))
}

/// The same wish by INT and HUP, for a program that has taken the screen and must give it back.
pub fn install_for_terminal() {
    install();
    let Some(flags) = FLAGS.get() else { return };
    for signal in [SIGINT, SIGHUP] {
        if let Err(error) = flag::register(signal, Arc::clone(&flags.drain)) {
            tracing::warn!("cannot catch signal {signal}: {error}");
        }
    }
}

/// Asks this process to drain, as a signal would (a full disk is a clean drain).
pub fn request() {
    install();
    if let Some(flags) = FLAGS.get() {
        flags.drain.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that a thread of this process blocks, as the kernel shows them.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[test]
    fn usr2_asks_for_a_drain_and_no_thread_that_computes_sees_it() {
        assert!(!requested());
        let ours =
            [SIGTERM, SIGUSR1, SIGUSR2, SIGQUIT].iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
        assert_eq!(blocked() & ours, ours);
        assert_eq!(std::thread::spawn(blocked).join().unwrap() & ours, ours);
        // SAFETY: sends a signal that is caught.
        unsafe { libc::kill(libc::getpid(), SIGUSR2) };
        let sent = std::time::Instant::now();
        while !requested() {
            assert!(sent.elapsed() < std::time::Duration::from_secs(20), "nobody got the signal");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        request();
        assert!(requested());
    }
}
