//! Shows what a checkpoint holds, as a table or as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use slime_cli::Failure;
use slime_weights::{TensorSpec, tensor_hash};

use crate::read_weights::Checkpoint;

/// Prints the checkpoint at `path`.
pub fn inspect(path: &Path, is_json: bool) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(path)?;
    let report = report(path, &checkpoint)?;
    let text = if is_json { format!("{report}\n") } else { table(&report) };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::io("stdout", &error))
}

fn report(path: &Path, checkpoint: &Checkpoint) -> Result<Value, Failure> {
    let tensors = checkpoint.tensors(None)?;
    let count = |spec: &TensorSpec| spec.shape.iter().product::<usize>();
    let mut dtypes: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in &tensors {
        *dtypes.entry(spec.dtype.name()).or_default() += count(spec);
    }
    let mut rows = Vec::with_capacity(tensors.len());
    for spec in &tensors {
        let hash = tensor_hash(&checkpoint.read(spec)?);
        rows.push(json!({"name": spec.name, "dtype": spec.dtype.name(), "shape": spec.shape, "xxh3": hash}));
    }
    Ok(json!({
        "path": path.display().to_string(),
        "format": checkpoint.format(),
        "num_parameters": tensors.iter().map(count).sum::<usize>(),
        "num_bytes": tensors.iter().map(TensorSpec::num_bytes).sum::<usize>(),
        "parameters_by_dtype": dtypes,
        "tensors": rows,
    }))
}

fn table(report: &Value) -> String {
    let mut text = String::new();
    let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for row in report["tensors"].as_array().into_iter().flatten() {
        let shape = row["shape"].to_string();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<58} {:<5} {shape:<16} {}",
            field(&row["name"]),
            field(&row["dtype"]),
            field(&row["xxh3"])
        );
    }
    let _ = writeln!(
        text,
        "{} ({}): {} tensors, {} parameters, {} bytes",
        field(&report["path"]),
        field(&report["format"]),
        report["tensors"].as_array().map_or(0, Vec::len),
        report["num_parameters"],
        report["num_bytes"]
    );
    text
}
