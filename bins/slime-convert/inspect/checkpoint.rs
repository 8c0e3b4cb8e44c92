//! A checkpoint of the trainer: its ranks, version and tensors; also one whose writing was cut off.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use slime_checkpoint::{Checkpoint, Error};
use slime_cli::Failure;
use slime_config::paths::{self, COMPLETE};

use super::{Report, table};

/// Whether a folder is a checkpoint, complete or not.
pub fn is_one(dir: &Path) -> bool {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).any(|name| name == COMPLETE || is_rank_file(&name))
}

fn is_rank_file(name: &str) -> bool {
    name.strip_prefix("rank_").is_some_and(|rest| rest.strip_suffix(".h5").is_some())
}

pub(super) fn report(dir: &Path) -> Result<Report, Failure> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let place = paths::parse_physical(&name);
    let mut json = json!({
        "path": dir.display().to_string(),
        "kind": "checkpoint",
        "version": place.map(|place| place.version),
        "epoch": place.map(|place| place.epoch),
    });
    let mut facts = vec![
        ("path", dir.display().to_string()),
        ("kind", "checkpoint".to_owned()),
        (
            "version",
            place.map_or(String::new(), |place| format!("{} of epoch {}", place.version, place.epoch)),
        ),
    ];
    let mut text = String::new();
    match Checkpoint::open(dir) {
        Ok(checkpoint) => {
            let (files, tensors, num_bytes) = describe(&checkpoint, &mut text);
            facts.push(("complete", "yes".to_owned()));
            facts.push(("ranks", checkpoint.world_size().to_string()));
            facts.push(("total", format!("{} tensors, {num_bytes} bytes", tensors.len())));
            facts.push(("meta", checkpoint.meta().to_string()));
            json["complete"] = true.into();
            json["world_size"] = checkpoint.world_size().into();
            json["num_bytes"] = num_bytes.into();
            json["meta"] = checkpoint.meta().clone();
            json["files"] = files.into();
            json["tensors"] = tensors.into();
        }
        Err(Error::Incomplete(_)) => {
            let files = files_of(dir)?;
            facts.push(("complete", "no: its writing was cut off, or goes on".to_owned()));
            let mut rows = vec![["file", "bytes"].map(str::to_owned).to_vec()];
            rows.extend(files.iter().map(|(name, bytes)| vec![name.clone(), bytes.to_string()]));
            text = table::table(&rows);
            json["complete"] = false.into();
            let files = files.iter().map(|(name, bytes)| json!({"name": name, "num_bytes": bytes}));
            json["files"] = files.collect::<Vec<_>>().into();
        }
        Err(error) => {
            let failure = Failure::from_error(error.exit_code(), &error);
            return Err(match error.hint() {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            });
        }
    }
    Ok(Report { json, text: format!("{}\n{text}", table::facts(&facts)) })
}

/// Files and tensors as JSON, their bytes, and both as tables in `text`.
fn describe(checkpoint: &Checkpoint, text: &mut String) -> (Vec<Value>, Vec<Value>, u64) {
    let mut rows = vec![["rank", "file", "bytes", "datasets"].map(str::to_owned).to_vec()];
    let mut files = Vec::new();
    for (rank, (file, bytes, num_datasets)) in checkpoint.rank_files().enumerate() {
        rows.push(vec![rank.to_string(), file.to_owned(), bytes.to_string(), num_datasets.to_string()]);
        files.push(json!({"name": file, "num_bytes": bytes, "num_datasets": num_datasets}));
    }
    *text = format!("{}\n", table::table(&rows));
    let mut rows = vec![["tensor", "dtype", "shape", "bytes"].map(str::to_owned).to_vec()];
    let (mut tensors, mut total) = (Vec::new(), 0);
    for (name, info) in checkpoint.tensors() {
        let num_bytes = (info.num_elements() * info.dtype.size()) as u64;
        total += num_bytes;
        rows.push(vec![
            name.to_owned(),
            info.dtype.name().to_owned(),
            format!("{:?}", info.shape),
            num_bytes.to_string(),
        ]);
        tensors.push(
            json!({"name": name, "dtype": info.dtype.name(), "shape": info.shape, "num_bytes": num_bytes}),
        );
    }
    *text += &table::table(&rows);
    (files, tensors, total)
}

/// Names and sizes of the files that are there, sorted.
fn files_of(dir: &Path) -> Result<Vec<(String, u64)>, Failure> {
    let failed = |error| Failure::open(dir.display(), &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let bytes = entry.metadata().map_err(failed)?.len();
        found.push((entry.file_name().to_string_lossy().into_owned(), bytes));
    }
    found.sort();
    Ok(found)
}
