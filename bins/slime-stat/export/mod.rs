//! The numbers of a run in the forms of other programs; each output appears whole or not at all.

mod csv;
mod parquet;
mod prometheus;
mod rows;
mod tensorboard;
mod trace;
mod wandb;
mod wandb_records;

use std::io::Write;

use slime_cli::{Failure, Output};

use crate::read_run::read_run;
use rows::Rows;

/// Writes the numbers of `run` to `target`: a file whose ending says the form, or `form:place`.
///
/// # Errors
/// An unknown form, a run that cannot be read, or a target that cannot be written.
pub fn export(run: &str, target: &str) -> Result<(), Failure> {
    if let Some((form @ ("tensorboard" | "wandb" | "prometheus" | "trace"), place)) = target.split_once(':') {
        if place.is_empty() {
            return Err(Failure::usage(format!("--export {form}: has no place behind it")));
        }
        let run = read_run(run)?;
        return match form {
            "tensorboard" => tensorboard::write(&run, place),
            "wandb" => wandb::write(&run, place),
            "prometheus" => write(place, prometheus::text(&run).as_bytes()),
            _ => trace::write(&run, place),
        };
    }
    let (stem, ending) = target.rsplit_once('.').unwrap_or((target, ""));
    let encode: fn(&Rows) -> Result<Vec<u8>, Failure> = match ending {
        "csv" => |rows| Ok(csv::text(rows).into_bytes()),
        "parquet" => parquet::bytes,
        _ => {
            return Err(Failure::usage(format!("--export {target}: no form is known by this name"))
                .with_hint(
                    "FILE.csv, FILE.parquet, tensorboard:DIR, wandb:DIR, prometheus:FILE or trace:FILE",
                ));
        }
    };
    let metrics = crate::read_metrics::read(run)?;
    let steps = encode(&Rows::of_steps(&metrics))?;
    let evals = Rows::of_evals(&metrics);
    if !evals.entries.is_empty() {
        // Whoever sees the steps finds the evaluations beside them.
        write(&format!("{stem}.eval.{ending}"), &encode(&evals)?)?;
    }
    write(target, &steps)
}

/// Writes one file.
fn write(path: &str, bytes: &[u8]) -> Result<(), Failure> {
    let mut output = Output::create(path)?;
    output.write_all(bytes).map_err(|error| Failure::io(path, &error))?;
    output.finish()
}

/// Makes the folder of an export.
fn folder(path: &std::path::Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|error| Failure::create(path.display(), &error))
}
