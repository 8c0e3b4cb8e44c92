//! Adds log-probs to rows of tokens, in their order.

use slime_cli::Failure;

use crate::args::Score;
use crate::failure;
use crate::generate::Sampler;
use crate::{read_tokens, write_rows};

/// `slime-rollout score`: rows in, the same rows with `log_probs` out, at `rollout.temperature`.
pub fn score(args: &Score) -> Result<(), Failure> {
    let mut config = args.settings.load()?;
    config.model.path = args.weights.display().to_string();
    args.settings.answer_dry_run(&config)?;
    // Greedy decoding still scores under the model's own distribution.
    let temperature = if config.rollout.temperature > 0.0 { config.rollout.temperature } else { 1.0 };
    let rows = read_tokens::read_tokens(&args.input)?;
    let mut output = write_rows::RowWriter::create(&args.output)?;
    let mut engine = Sampler::load_engine(&config, 0)?;
    let mut num_rows = 0_u64;
    for row in rows {
        let mut row = row?;
        let log_probs = engine.score(num_rows, &row.tokens, temperature).map_err(failure!())?;
        row.fields.insert("log_probs".to_owned(), log_probs.into());
        output.write(&row.fields)?;
        num_rows += 1;
    }
    if num_rows == 0 {
        let name = if args.input == "-" { "stdin" } else { &args.input };
        return Err(Failure::data(format!("{name}: no rows")));
    }
    output.finish()
}
