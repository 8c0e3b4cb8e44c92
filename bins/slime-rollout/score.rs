//! Adds log-probs to rows of tokens, in their order.

use slime_cli::Failure;
use slime_config::RunConfig;

use crate::args::Score;
use crate::failure;
use crate::read_tokens::TokenRow;
use crate::sampler::Sampler;
use crate::{ranks, read_tokens, write_rows};

/// `slime-rollout score`: rows in, the same rows with `log_probs` out, at `rollout.temperature`.
pub fn score(args: &Score) -> Result<(), Failure> {
    let mut config = args.settings.load()?;
    config.model.path = args.weights.display().to_string();
    args.settings.answer_dry_run(&config)?;
    ranks::run(&config, true, || score_rows(args, &config))
}

fn score_rows(args: &Score, config: &RunConfig) -> Result<(), Failure> {
    // Greedy decoding still scores under the model's own distribution.
    let temperature = if config.rollout.temperature > 0.0 { config.rollout.temperature } else { 1.0 };
    let rows = read_tokens::read_tokens(&args.input)?;
    let mut output = write_rows::RowWriter::create(&args.output)?;
    let mut engine = Sampler::load_engine(config, 0)?;
    let mut num_rows = 0_u64;
    for row in rows {
        let mut row = row?;
        let log_probs = engine.score(num_rows, &row.tokens, temperature).map_err(failure!())?;
        match &args.column {
            Some(column) => {
                let of_response = of_response(&row, &log_probs, num_rows + 1)?;
                row.fields.insert(column.clone(), of_response.into());
            }
            None => drop(row.fields.insert("log_probs".to_owned(), log_probs.into())),
        }
        output.write(&row.fields)?;
        num_rows += 1;
    }
    if num_rows == 0 {
        let name = if args.input == "-" { "stdin" } else { &args.input };
        return Err(Failure::data(format!("{name}: no rows")));
    }
    output.finish()
}

/// The log-probs of the tokens behind the prompt; `log_probs` begin with the second token.
fn of_response(row: &TokenRow, log_probs: &[f32], number: u64) -> Result<Vec<f32>, Failure> {
    let prompt_len = row.fields.get("prompt_len").and_then(serde_json::Value::as_u64).unwrap_or(0) as usize;
    match prompt_len.checked_sub(1) {
        Some(before) => Ok(log_probs.get(before..).unwrap_or_default().to_vec()),
        None => Err(Failure::data(format!("row {number}: prompt_len: expected at least 1 token"))
            .with_hint("--column is about a response, which has a prompt before it")),
    }
}
