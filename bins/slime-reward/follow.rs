//! Stays with a run: scores its sealed segments into the reward column until the run is done or drained.

use std::path::Path;
use std::time::{Duration, Instant};

use slime_cli::watchdog::{Section, enter};
use slime_cli::{Failure, drain, exit};
use slime_config::{Placement, RunDir, paths};
use slime_exchange::{
    ArrowFormat, FsStore, Idle, RewardAction, RewardWorker, RewardWorkerConfig, join_attempt, refuse_second,
};

use slime_metrics::Trace;
use slime_metrics::trace::Span;

use crate::args::Args;
use crate::score::tell_restarts;
use crate::write_rewards::provenance;

/// Time between heartbeats.
const BEAT_MS: u64 = 2000;
/// The column that filters and trainer read.
const COLUMN: &str = "reward";
/// Segments held at once.
const MAX_IN_FLIGHT: usize = 8;

/// `slime-reward --follow RUN`.
pub fn follow(run: &Path, args: &Args) -> Result<(), Failure> {
    if args.worker >= args.num_workers {
        let message = format!("--worker {}: expected below --num-workers {}", args.worker, args.num_workers);
        return Err(Failure::usage(message));
    }
    let config = slime_config::load(Some(&RunDir::new(run).run_toml()), &args.sets)
        .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    args.start_sandbox(&config)?;
    drain::install();
    if config.reward.placement == Placement::Inline {
        return Err(Failure::new(
            exit::CONFIG,
            "reward.placement is inline: the step builder scores this run",
        )
        .with_hint("set reward.placement = \"separate\" in run.toml"));
    }
    join_attempt(&paths::worker(COLUMN, args.worker), &config.watchdog);
    let rewards = args.reward_set(&config)?;
    let mut store = FsStore::open(run).map_err(failure)?;
    if !args.takeover {
        let owner = paths::worker(COLUMN, args.worker);
        refuse_second(&mut store, &owner, Duration::from_millis(BEAT_MS)).map_err(failure)?;
    }
    let worker_config = RewardWorkerConfig {
        column: COLUMN.to_owned(),
        index: args.worker,
        num_workers: args.num_workers,
        max_in_flight: MAX_IN_FLIGHT,
        max_staleness: config.run.max_staleness,
        beat_ms: BEAT_MS,
    };
    let format = ArrowFormat { provenance: provenance(config.run.seed) };
    let mut worker = RewardWorker::start(&mut store, worker_config, format).map_err(failure)?;
    let owner = paths::worker(COLUMN, args.worker);
    let trace = Trace::start(run, &owner, worker.incarnation(), &config.metrics);
    let mut idle = Idle::default();
    let mut num_restarts = 0;
    loop {
        enter(Section::Wait);
        if drain::requested() {
            worker.drain();
        }
        idle.begin();
        let actions = match worker.poll(&mut store) {
            Err(error) if error.is_transient() => Vec::new(),
            polled => polled.map_err(failure)?,
        };
        idle.polled();
        if actions.is_empty() {
            trace.flush();
            idle.sleep();
            continue;
        }
        enter(Section::Step);
        for action in actions {
            match action {
                RewardAction::Done if worker.is_draining() => {
                    return Err(Failure::drained("every scored segment is sealed; start again to go on"));
                }
                RewardAction::Done => return Ok(()),
                RewardAction::Score { segment, bytes } => {
                    let began = Instant::now();
                    let rows = rewards
                        .score_segment(&segment, &bytes)
                        .map_err(|error| Failure::from_error(error.exit_code(), &error))?;
                    tracing::debug!(segment, rows = rows.len(), "scored");
                    num_restarts = tell_restarts(num_restarts);
                    let num_failed = rewards.take_failures();
                    if num_failed > 0 {
                        tracing::warn!(
                            "{segment}: {num_failed} verdicts are configured defaults, since types failed"
                        );
                    }
                    let (ended, args) =
                        (Instant::now(), serde_json::json!({ "segment": segment, "rows": rows.len() }));
                    let span = Span { name: "score", category: "reward", lane: 0, began, ended, args };
                    trace.span(&span);
                    worker.on_scored(segment, rows);
                }
            }
        }
        idle.end();
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn failure(error: slime_exchange::Error) -> Failure {
    Failure::from_error(error.exit_code(), &error)
}
