//! Shows what a file or folder of a run holds, as tables or as one JSON object; one file for each kind of thing.

pub mod checkpoint;
mod column;
mod gguf;
mod manifest;
mod plan;
mod segment;
mod table;
mod weights;

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use slime_cli::{Failure, exit};

use crate::args::Inspect;

/// What was found: the same as one JSON object and as text.
struct Report {
    json: Value,
    text: String,
}

/// Prints what the path is, or what the model there comes to.
pub fn inspect(args: &Inspect) -> Result<(), Failure> {
    let report = if args.plan { plan::report(&args.path, args.layout)? } else { report(&args.path)? };
    let text = if args.json { format!("{}\n", report.json) } else { report.text };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::io("stdout", &error))
}

/// Folders are told apart by what lies in them, files by their first bytes; a file that is not in its place may be
/// packed.
fn report(path: &Path) -> Result<Report, Failure> {
    if path.is_dir() {
        return if checkpoint::is_one(path) { checkpoint::report(path) } else { weights::report(path) };
    }
    if path.exists() {
        match &read_head(path)?[..] {
            b"GGUF" => return gguf::report(path),
            b"ARRO" | [b'{', ..] => (),
            // A safetensors file begins with the length of its header.
            _ => return weights::report(path),
        }
    }
    let bytes =
        slime_archive::read_file(path).map_err(|error| Failure::from_error(error.exit_code(), &error))?;
    if bytes.starts_with(b"ARROW1") {
        return arrow(path, bytes);
    }
    manifest::report(path, &bytes)
}

fn read_head(path: &Path) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let mut head = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| Failure::open(path.display(), &error))?;
    file.take(4).read_to_end(&mut head).map_err(|error| Failure::io(path.display(), &error))?;
    Ok(head)
}

fn arrow(path: &Path, bytes: Vec<u8>) -> Result<Report, Failure> {
    let num_bytes = bytes.len();
    let description = slime_record::describe(bytes.clone()).map_err(|error| of_record(path, &error))?;
    let columns: Vec<Value> = description
        .columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name, "dtype": column.dtype,
                "nullable": column.is_nullable, "num_bytes": column.num_bytes,
            })
        })
        .collect();
    let provenance = &description.provenance;
    let mut json = json!({
        "path": path.display().to_string(),
        "kind": if description.column.is_some() { "column" } else { "segment" },
        "num_bytes": num_bytes,
        "num_rows": description.num_rows,
        "num_batches": description.num_batches,
        "provenance": {
            "tool": provenance.tool, "tool_version": provenance.tool_version,
            "config_hash": provenance.config_hash, "seed": provenance.seed,
            "weight_version": provenance.weight_version, "extra": provenance.extra,
        },
        "columns": columns,
    });
    let summary = match description.column {
        Some(_) => column::summarise(path, bytes)?,
        None => segment::summarise(path, bytes)?,
    };
    let mut rows = vec![["column", "dtype", "nullable", "bytes"].map(str::to_owned).to_vec()];
    rows.extend(description.columns.iter().map(|column| {
        let nullable = if column.is_nullable { "yes" } else { "no" };
        vec![column.name.clone(), column.dtype.clone(), nullable.to_owned(), column.num_bytes.to_string()]
    }));
    let mut facts = vec![
        ("path", path.display().to_string()),
        ("kind", json["kind"].as_str().unwrap_or_default().to_owned()),
        (
            "rows",
            format!("{} in {} batches, {num_bytes} bytes", description.num_rows, description.num_batches),
        ),
        ("written by", format!("{} {}", provenance.tool, provenance.tool_version)),
        ("configuration", provenance.config_hash.clone()),
        ("seed", provenance.seed.to_string()),
    ];
    facts.extend(summary.facts);
    facts.extend(provenance.extra.iter().map(|(key, value)| (key.as_str(), value.clone())));
    if let (Some(json), Value::Object(more)) = (json.as_object_mut(), summary.json) {
        json.extend(more);
    }
    Ok(Report { json, text: format!("{}\n{}", table::facts(&facts), table::table(&rows)) })
}

/// What a kind of Arrow file adds to its description.
struct Summary {
    json: Value,
    facts: Vec<(&'static str, String)>,
}

fn of_record(path: &Path, error: &slime_record::Error) -> Failure {
    let failure = Failure::from_error(error.exit_code(), error);
    Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
}

fn unknown(path: &Path) -> Failure {
    let message = format!(
        "{}: expected weights, GGUF, a checkpoint, Arrow or a step's manifest, got none of them",
        path.display()
    );
    Failure::new(exit::DATA, message)
}
