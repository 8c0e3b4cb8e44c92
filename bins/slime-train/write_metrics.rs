//! One line of numbers for each trained step.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use slime_cli::Failure;
use slime_config::RunDir;
use slime_record::Manifest;
use slime_trainer::StepMetrics;

/// How long a step took.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Its training.
    pub train: Duration,
    /// All of it, since the step before or the start.
    pub step: Duration,
}

/// Appends to metrics/train.jsonl; with several optimizer steps the numbers are their means.
///
/// A step that is trained again after a restart gets a second line; readers take the last.
///
/// # Errors
/// The disk refuses.
pub fn append_metrics(
    run: &Path,
    manifest: &Manifest,
    steps: &[StepMetrics],
    times: Times,
) -> Result<(), Failure> {
    let path = RunDir::new(run).metrics_file("train");
    let io = |error: std::io::Error| Failure::io(path.display(), &error);
    let mut row = json!({ "step": manifest.step, "tool": "train" });
    if let Some(row) = row.as_object_mut() {
        row.extend(means(steps));
        row.insert("staleness".to_owned(), manifest.staleness().into());
        row.insert("train_s".to_owned(), times.train.as_secs_f64().into());
        row.insert("step_s".to_owned(), times.step.as_secs_f64().into());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
    file.write_all(format!("{row}\n").as_bytes()).map_err(io)
}

/// The mean of each number over the optimizer steps.
fn means(steps: &[StepMetrics]) -> Map<String, Value> {
    let mut sums = Map::new();
    for step in steps {
        let Ok(Value::Object(numbers)) = serde_json::to_value(step) else { continue };
        for (name, value) in numbers {
            let sum = sums.get(&name).and_then(Value::as_f64).unwrap_or(0.0);
            let mean = value.as_f64().unwrap_or(f64::NAN) / steps.len() as f64;
            sums.insert(name, json!(sum + mean));
        }
    }
    sums
}
