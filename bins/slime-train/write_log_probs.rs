//! The log-probs of training for every token of a step's first groups, as a column beside the reward: for people who
//! look at a mismatch; nothing ever needs it.

use std::path::Path;
use std::{fs, io};

use slime_cli::temporary_beside;
use slime_config::{RunConfig, paths};
use slime_record::{Column, ColumnValues, Provenance};
use slime_trainer::Report;

/// Name of the column.
const COLUMN: &str = "log_probs";

/// Who writes, about what.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// The step.
    pub step: u64,
    /// The rank.
    pub rank: usize,
    /// The trainer's epoch.
    pub epoch: u64,
}

/// Writes the samples that this rank trained; where that fails the run goes on without, and it is said.
pub fn write_log_probs(run: &Path, config: &RunConfig, writer: Writer, report: &Report) {
    if report.logged.is_empty() {
        return;
    }
    let name = paths::column_file(COLUMN, writer.step, writer.rank as u32, writer.epoch, 0);
    let path = run.join(&name);
    let column = Column {
        name: COLUMN.to_owned(),
        ids: report.logged.keys().copied().collect(),
        tokens_hashes: report.logged.values().map(|sample| sample.tokens_hash).collect(),
        values: ColumnValues::F32List(report.logged.values().map(|s| s.log_probs.clone()).collect()),
        details: vec![None; report.logged.len()],
    };
    let provenance = Provenance {
        tool: "slime-train".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: config.run.seed,
        weight_version: Some(writer.step),
        ..Provenance::default()
    };
    let written = column
        .encode(&provenance)
        .map_err(|error| error.to_string())
        .and_then(|bytes| put(&path, &bytes).map_err(|error| error.to_string()));
    if let Err(error) = written {
        tracing::warn!("{name} is not written: {error}");
    }
}

/// Under a temporary name first, so that nobody reads a part; not synced, since a step would wait for it and only a node
/// that goes down loses it.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = temporary_beside(path);
    let write = || {
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        // The error that is told is the first one.
        let _ = fs::remove_file(&temporary);
    })
}
