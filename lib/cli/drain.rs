//! The wish to stop: USR2, USR1 and TERM set a flag that resident tools look at between steps; a second TERM
//! ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;

static FLAGS: OnceLock<Flags> = OnceLock::new();

struct Flags {
    drain: Arc<AtomicBool>,
}

/// The exit code of a process that a second TERM ended: 128 + 15, as a shell reports it.
const TERMINATED: i32 = 128 + SIGTERM;

/// Catches the drain signals from now on. One-shot tools do not call this, so TERM ends them as usual.
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
        Flags { drain }
    });
}

/// Whether a drain was asked for; the first call starts catching the signals.
pub fn requested() -> bool {
    install();
    FLAGS.get().is_some_and(|flags| flags.drain.load(Ordering::Relaxed))
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

    #[test]
    fn usr2_asks_for_a_drain() {
        assert!(!requested());
        signal_hook::low_level::raise(SIGUSR2).unwrap();
        assert!(requested());
        request();
        assert!(requested());
    }
}
