//! Scores rows: what is read goes through the reward types to the output, in order.

use std::sync::Arc;

use slime_cli::{Failure, exit, parse, start_logging};
use slime_verifier::{RewardSet, Scored};

use crate::args::Args;
use crate::follow::follow;
use crate::read_samples::{Batching, InputRow};
use crate::stream::{Opened, ScoredRow, start};
use crate::write_rewards::{Formatted, RewardWriter};
use crate::write_stats::Stats;

/// The body of the tool.
pub fn main() -> Result<(), Failure> {
    let args: Args = parse()?;
    start_logging(args.verbosity);
    if args.types == ["list"] {
        return Err(Failure::new(0, slime_verifier::list()));
    }
    if let Some(run) = &args.follow {
        return follow(run, &args);
    }
    let config = args.configuration()?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let rewards = Arc::new(args.reward_set(&config)?);
    if args.dry_run {
        let text = config.to_toml().map_err(|error| Failure::from_error(error.exit_code(), &error))?;
        return Err(Failure::new(0, text));
    }
    args.start_sandbox(&config)?;
    if let Some(threads) = args.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global();
        pool.map_err(|error| Failure::new(exit::OS, error))?;
    }
    let batching = Batching { num_rows: args.batch_rows.get(), keeps_groups: rewards.compares_groups() };
    let (input, stream) = start(&args.input, &rewards, batching)?;
    let mut output = RewardWriter::create(&args.output, input.is_arrow, config.run.seed)?;
    let mut pass = Pass { args: &args, rewards: &rewards, input: &input, stats: Stats::new(rewards.names()) };
    while let Some(batch) = stream.next()? {
        let mut formatted = Formatted::new(input.is_arrow);
        for row in batch.rows {
            if let Some((row, scored)) = pass.take(row)? {
                formatted.push(row, &scored, rewards.names())?;
            }
        }
        output.write(formatted)?;
        if let Some(failure) = batch.end {
            return Err(failure);
        }
    }
    stream.finish()?;
    pass.finish()?;
    tell_restarts(0);
    output.finish()
}

/// Says when zygotes of the sandbox had to be started again since there were `known` such starts; how many there are now.
pub fn tell_restarts(known: u64) -> u64 {
    let num_restarts = slime_verifier::num_sandbox_restarts();
    if num_restarts > known {
        tracing::warn!("zygotes of the sandbox ended and were started again: {num_restarts} so far");
    }
    num_restarts
}

/// What happens to rows between their scoring and the output.
struct Pass<'a> {
    args: &'a Args,
    rewards: &'a RewardSet,
    input: &'a Opened,
    stats: Stats,
}

impl Pass<'_> {
    fn unit(&self) -> &'static str {
        if self.input.is_arrow { "row" } else { "line" }
    }

    /// A row with its reward; `None` for a bad one that is skipped.
    fn take(&mut self, (row, scored): ScoredRow) -> Result<Option<(InputRow, Scored)>, Failure> {
        let (row, problem) = match (row, scored) {
            (Ok(row), Some(Ok(scored))) => {
                self.explain(&row, &scored);
                self.stats.add(&scored);
                return Ok(Some((row, scored)));
            }
            (Ok(row), Some(Err(error))) => (row.number, Failure::from_error(error.exit_code(), &error)),
            (Ok(row), None) => (row.number, Failure::new(exit::BUG, "no reward")),
            (Err(bad), _) => (bad.number, Failure::data(bad.problem)),
        };
        if self.args.skip_bad && problem.code == exit::DATA {
            if self.stats.skip(row) {
                tracing::warn!("{}: {} {row} skipped: {}", self.input.name, self.unit(), problem.message);
            }
            return Ok(None);
        }
        let message = format!("{}: {} {row}: {}", self.input.name, self.unit(), problem.message);
        Err(Failure { message, ..problem })
    }

    fn explain(&self, row: &InputRow, scored: &Scored) {
        if !self.args.explain {
            return;
        }
        for (name, part) in self.rewards.names().iter().zip(&scored.parts) {
            let answer = part.answer.as_ref().map_or(String::new(), |answer| format!(" ({answer:?})"));
            eprintln!("{} {}: {name} = {}{answer}: {}", self.unit(), row.number, part.reward, part.reason);
        }
    }

    fn finish(self) -> Result<(), Failure> {
        if let Some(skipped) = self.stats.skipped(self.unit()) {
            tracing::warn!("{}: {skipped}", self.input.name);
        }
        if self.stats.num_rows() == 0 {
            return Err(Failure::data(format!("{}: no rows", self.input.name)));
        }
        if let Some(failures) = self.stats.failures() {
            tracing::warn!("{}: {failures}", self.input.name);
        }
        if self.args.stats {
            eprint!("{}", self.stats);
        }
        Ok(())
    }
}
