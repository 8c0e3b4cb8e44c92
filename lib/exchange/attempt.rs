//! The part of a resident tool in an attempt: one start of the job, whose folder the job script names to its tools.

use std::path::PathBuf;
use std::time::Duration;

use slime_cli::watchdog::{self, Limits, RankFiles};
use slime_config::{Watchdog, paths};

/// Starts the watchdog of this process as `role` (`trainer.<rank>`, `builder.0`, `replica.<index>`,
/// `reward.<index>`). Under a job script (`SLIME_ATTEMPT_DIR`) it leaves there what it does, why it fails and where it
/// hangs.
pub fn join_attempt(role: &str, limits: &Watchdog) {
    let seconds = |limit: u64| (limit > 0).then(|| Duration::from_secs(limit));
    let limits = Limits {
        setup: seconds(limits.setup_s),
        step: seconds(limits.step_s),
        checkpoint: seconds(limits.checkpoint_s),
    };
    let folder =
        std::env::var_os(paths::ATTEMPT_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let files = folder.map(|folder| RankFiles {
        note: folder.join(paths::rank_note(role, &watchdog::host(), std::process::id())),
        failed: folder.join(paths::rank_failure(role)),
        stack: folder.join(paths::rank_stack(role)),
        world: world_of(role),
        peers: role.split_once('.').map_or(role, |(tool, _)| tool).to_owned() + ".",
    });
    watchdog::start(role, limits, files);
}

/// How the roles of the ranks begin that a rank computes with: those of the trainer, or of one replica (`replica.2.1`).
fn world_of(role: &str) -> Option<String> {
    let (world, _) = role.rsplit_once('.')?;
    (world == paths::TRAINER || world.contains('.')).then(|| format!("{world}."))
}
