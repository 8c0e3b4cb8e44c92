//! Logging to stderr: one line per event, level from `-v`/`-q` or `SLIME_LOG`.

use std::io::{IsTerminal, stderr};
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// The verbosity flags every tool has.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Verbosity {
    /// Say more on stderr (-vv: everything); `SLIME_LOG` takes a filter such as `slime_engine=debug`
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 100)]
    pub verbose: u8,
    /// Say only warnings on stderr (-qq: only errors)
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 101, conflicts_with = "verbose")]
    pub quiet: u8,
}

impl Verbosity {
    fn level(self) -> &'static str {
        match (self.verbose, self.quiet) {
            (0, 0) => "info",
            (1, _) => "debug",
            (2.., _) => "trace",
            (0, 1) => "warn",
            (0, _) => "error",
        }
    }
}

/// Sends log lines to stderr from now on; later calls change nothing.
pub fn start_logging(verbosity: Verbosity) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let filter =
            EnvFilter::try_from_env("SLIME_LOG").unwrap_or_else(|_| EnvFilter::new(verbosity.level()));
        // Another subscriber may already be set by an embedding program; its choice stands.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(stderr)
            .with_ansi(stderr().is_terminal())
            .with_target(false)
            .try_init();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_choose_the_level() {
        let level = |verbose, quiet| Verbosity { verbose, quiet }.level();
        assert_eq!(level(0, 0), "info");
        assert_eq!(level(1, 0), "debug");
        assert_eq!(level(3, 0), "trace");
        assert_eq!(level(0, 1), "warn");
        assert_eq!(level(0, 2), "error");
    }
}
