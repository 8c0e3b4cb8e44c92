//! Samples with rewards: read by rank 0, given to every rank.

use std::fs::File;
use std::io::{BufRead, BufReader};

use slime_cli::Failure;
use slime_comm::Communicator;
use slime_record::{Row, RowReader, Sample};
use slime_trainer::Scored;

use crate::share::share;

/// The samples of `input` (`-` is stdin) on every rank.
///
/// Rank 0 alone reads: a launcher gives stdin to it only.
pub fn read_samples(input: &str, comm: &dyn Communicator) -> Result<Vec<Scored>, Failure> {
    let mine = if comm.rank() == 0 { read(input)? } else { Vec::new() };
    let pairs: Vec<(Sample, f32)> = mine.into_iter().map(|scored| (scored.sample, scored.reward)).collect();
    let pairs = share(pairs, comm)?;
    Ok(pairs.into_iter().map(|(sample, reward)| Scored { sample, reward }).collect())
}

fn read(input: &str) -> Result<Vec<Scored>, Failure> {
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
        let Row { sample, reward, .. } = row.map_err(in_input)?;
        let Some(reward) = reward else {
            let message = format!("{name}: row {} (sample {}): no reward", i + 1, sample.id());
            return Err(Failure::data(message).with_hint("pipe the samples through slime-reward first"));
        };
        sample.validate().map_err(in_input)?;
        scored.push(Scored { sample, reward });
    }
    if scored.is_empty() {
        return Err(Failure::data(format!("{name}: no samples to train on")));
    }
    Ok(scored)
}
