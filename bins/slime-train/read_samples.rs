//! Samples with rewards: read by rank 0, given to every rank.

use std::fs::File;
use std::io::{BufRead, BufReader};

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_comm::Communicator;
use slime_config::{AdvantageEstimator, Algorithm, LossType};
use slime_record::{Row, RowReader, Sample};
use slime_trainer::Scored;

use crate::share::share;

/// The samples of `input` (`-` is stdin) on every rank.
///
/// Rank 0 alone reads: a launcher gives stdin to it only.
pub fn read_samples(
    input: &str,
    algorithm: &Algorithm,
    comm: &dyn Communicator,
) -> Result<Vec<Scored>, Failure> {
    let mine = if comm.rank() == 0 { read(input, algorithm)? } else { Vec::new() };
    share(mine, comm)
}

fn read(input: &str, algorithm: &Algorithm) -> Result<Vec<Scored>, Failure> {
    let name = if input == "-" { "stdin" } else { input };
    let reader: Box<dyn BufRead> = if input == "-" {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(input).map_err(|error| Failure::open(input, &error))?))
    };
    let in_input = |error: slime_record::Error| {
        let failure = Failure::from_error(error.exit_code(), &error);
        Failure { message: format!("{name}: {}", failure.message), ..failure }
    };
    let mut scored = Vec::new();
    for (i, row) in RowReader::new(reader).map_err(in_input)?.enumerate() {
        let Row { sample, reward, extra } = row.map_err(in_input)?;
        let place = format!("{name}: row {} (sample {})", i + 1, sample.id());
        if reward.is_none() && needs_reward(algorithm) {
            let message = format!("{place}: no reward");
            return Err(Failure::data(message).with_hint("pipe the samples through slime-reward first"));
        }
        sample.validate().map_err(in_input)?;
        let token_rewards = floats(&extra, "token_rewards", &place)?;
        let teacher_log_probs = floats(&extra, "teacher_log_probs", &place)?;
        let margin = margin(&sample, &extra, &place)?;
        scored.push(Scored { sample, reward, token_rewards, teacher_log_probs, margin });
    }
    if scored.is_empty() {
        return Err(Failure::data(format!("{name}: no samples to train on")));
    }
    Ok(scored)
}

/// Whether a sample without a reward says nothing under the configured loss.
pub fn needs_reward(algorithm: &Algorithm) -> bool {
    let is_distilled = algorithm.advantage_estimator == AdvantageEstimator::Distillation;
    algorithm.loss == LossType::Policy && !is_distilled
}

/// A list of numbers that travels beside a sample; empty where it does not.
fn floats(extra: &Map<String, Value>, field: &str, place: &str) -> Result<Vec<f32>, Failure> {
    let Some(value) = extra.get(field) else { return Ok(Vec::new()) };
    serde_json::from_value(value.clone())
        .map_err(|error| Failure::data(format!("{place}: {field}: expected a list of numbers: {error}")))
}

/// By how much the better answer is known to be better: a field of the row or of its metadata.
pub fn margin(sample: &Sample, extra: &Map<String, Value>, place: &str) -> Result<Option<f32>, Failure> {
    let metadata: Option<Value> = sample.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let Some(value) = extra.get("margin").or_else(|| metadata.as_ref()?.get("margin")) else {
        return Ok(None);
    };
    match value.as_f64().filter(|margin| margin.is_finite()) {
        Some(margin) => Ok(Some(margin as f32)),
        None => Err(Failure::data(format!("{place}: margin: expected a finite number, got {value}"))),
    }
}
