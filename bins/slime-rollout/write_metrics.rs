//! Numbers of the rollout as JSON lines: one object a line, appended whole.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;
use slime_cli::Failure;
use slime_config::RunDir;

/// `metrics/rollout.jsonl` of a run.
pub struct Metrics {
    path: PathBuf,
}

impl Metrics {
    /// Touches nothing until the first line.
    pub fn new(run_dir: &RunDir) -> Self {
        Self { path: run_dir.metrics_file("rollout") }
    }

    /// Appends one line.
    pub fn write(&mut self, line: &Value) -> Result<(), Failure> {
        let name = self.path.display();
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(|error| Failure::create(folder.display(), &error))?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        let mut file = file.map_err(|error| Failure::create(name, &error))?;
        file.write_all(format!("{line}\n").as_bytes())
            .map_err(|error| Failure::io(self.path.display(), &error))
    }
}
