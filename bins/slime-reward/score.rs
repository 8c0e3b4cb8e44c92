//! Scores batch after batch.

use slime_cli::{Failure, parse, start_logging};
use slime_verifier::{Error, RewardSet, Row, Scored};

use crate::args::Args;
use crate::follow::follow;
use crate::read_samples::{Input, InputRow};
use crate::write_rewards::RewardWriter;

/// The body of the tool.
pub fn main() -> Result<(), Failure> {
    let args: Args = parse()?;
    start_logging(args.verbosity);
    if let Some(run) = &args.follow {
        return follow(run, &args);
    }
    let config = args.configuration()?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let rewards = args.reward_set(&config)?;
    if args.dry_run {
        let text = config.to_toml().map_err(|error| Failure::from_error(error.exit_code(), &error))?;
        return Err(Failure::new(0, text));
    }
    let mut input = Input::open(&args.input)?;
    let mut output = RewardWriter::create(&args.output, input.is_arrow(), config.run.seed)?;
    let mut total = 0;
    loop {
        let batch = input.batch()?;
        if batch.is_empty() {
            break;
        }
        let scored = score(&rewards, &batch, &input)?;
        if args.explain {
            explain(&rewards, &batch, &scored, input.unit());
        }
        total += batch.len();
        output.write(batch, &scored, rewards.names())?;
    }
    if total == 0 {
        return Err(Failure::data(format!("{}: no rows", input.name())));
    }
    output.finish()
}

fn score(rewards: &RewardSet, batch: &[InputRow], input: &Input) -> Result<Vec<Scored>, Failure> {
    let rows: Vec<Row<'_>> = batch
        .iter()
        .map(|row| Row {
            response: &row.response,
            label: row.label.as_deref(),
            metadata: row.metadata.as_deref(),
            num_tokens: row.num_tokens,
            ..Row::default()
        })
        .collect();
    rewards.score(&rows).map_err(|error| {
        let (row, error) = match error {
            Error::Row { row, source } => (batch.get(row), *source),
            error => (None, error),
        };
        let mut failure = Failure::from_error(error.exit_code(), &error);
        if let Some(row) = row {
            failure.message =
                format!("{}: {} {}: {}", input.name(), input.unit(), row.number, failure.message);
        }
        failure
    })
}

fn explain(rewards: &RewardSet, batch: &[InputRow], scored: &[Scored], unit: &str) {
    for (row, sample) in batch.iter().zip(scored) {
        for (name, part) in rewards.names().iter().zip(&sample.parts) {
            eprintln!("{unit} {}: {name} = {}: {}", row.number, part.reward, part.reason);
        }
    }
}
