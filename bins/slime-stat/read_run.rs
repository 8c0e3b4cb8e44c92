//! Reads everything about a run that stands in its indexes: metric lines, configuration, attempts; no sample is opened.

use std::fs;
use std::path::Path;

use serde_json::Value;
use slime_cli::Failure;
use slime_config::{RunConfig, RunDir};

use crate::read_engines::{Engine, read_engines};
use crate::read_metrics::{Metrics, read};
use crate::read_trace::{Trace, read_traces};
use crate::read_warnings::{Warning, read_warnings};
use crate::summarise::{Summary, summarise};

/// Bytes of each trace file that a picture of the whole run looks at.
const TRACE_BYTES: u64 = 4 << 20;

/// A run as far as its indexes tell it.
#[derive(Debug)]
pub struct Run {
    /// Where it lies.
    pub dir: RunDir,
    /// The last part of its path, as people call it.
    pub name: String,
    /// Steps, evaluations, outcome.
    pub metrics: Metrics,
    /// What tools warned of.
    pub warnings: Vec<Warning>,
    /// What the replicas said.
    pub engines: Vec<Engine>,
    /// What the tools did when.
    pub traces: Vec<Trace>,
    /// Job, attempts, phases, ranks, where [`Run::with_summary`] looked for them.
    pub summary: Summary,
    /// The text of `run.toml`.
    pub config_text: Option<String>,
    /// The same, where this version understands it.
    pub config: Option<RunConfig>,
    /// `run.json`: versions, hashes, hosts.
    pub provenance: Option<Value>,
    /// What is not there, one sentence each.
    pub missing: Vec<String>,
}

/// Reads the indexes of a run directory.
///
/// # Errors
/// There is no run, or a file of which nothing can be read.
pub fn read_run(path: &str) -> Result<Run, Failure> {
    let dir = RunDir::new(path);
    let metrics = read(path)?;
    let mut missing = metrics.missing.clone();
    if metrics.steps.is_empty() {
        missing.push("no step has been told yet".to_owned());
    }
    let config_text = fs::read_to_string(dir.run_toml()).ok();
    let config = match &config_text {
        None => {
            missing.push("run.toml is missing, so settings are not shown".to_owned());
            None
        }
        Some(text) => slime_config::parse(text, "run.toml", &[])
            .inspect_err(|error| missing.push(format!("run.toml is of another version: {error}")))
            .ok(),
    };
    let provenance = fs::read(dir.join("run.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if provenance.is_none() {
        missing.push("run.json is missing, so versions, hashes and hosts are not shown".to_owned());
    }
    let engines = read_engines(&dir);
    if engines.is_empty() {
        missing.push("the replicas have told nothing of themselves (metrics/engine-*.jsonl)".to_owned());
    }
    let traces = read_traces(&dir, TRACE_BYTES);
    if traces.is_empty() {
        missing
            .push("there are no trace files, so the timeline is made of the times of the steps".to_owned());
    }
    let warnings = read_warnings(&dir);
    Ok(Run {
        name: name(path),
        metrics,
        warnings,
        engines,
        traces,
        summary: Summary::default(),
        config_text,
        config,
        provenance,
        missing,
        dir,
    })
}

/// The last part of a path; of `.` and the like what they stand for.
fn name(path: &str) -> String {
    let real = fs::canonicalize(path).unwrap_or_else(|_| Path::new(path).to_owned());
    real.file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

impl Run {
    /// The same run with its job, attempts and ranks; Slurm is asked once.
    pub fn with_summary(mut self) -> Self {
        self.summary = summarise(&self.dir.root().to_string_lossy(), &self.metrics);
        self
    }

    /// How many steps it shall have, where it says so.
    pub fn num_steps(&self) -> Option<u64> {
        self.config.as_ref()?.run.num_steps
    }

    /// Whether it came to its end.
    pub fn is_done(&self) -> bool {
        self.metrics.outcome == "done"
    }

    /// Seconds from the first to the last row of a step, with the first step's own time.
    pub fn duration_s(&self) -> Option<f64> {
        let first = self.metrics.times.values().copied().fold(f64::INFINITY, f64::min);
        let last = self.metrics.times.values().copied().fold(f64::NEG_INFINITY, f64::max);
        let steps = self.metrics.series(crate::names::STEP_TIME);
        if first < last {
            return Some(last - first + steps.first().map_or(0.0, |(_, seconds)| *seconds));
        }
        let sum: f64 = steps.iter().map(|(_, seconds)| seconds).sum();
        (sum > 0.0).then_some(sum)
    }
}
