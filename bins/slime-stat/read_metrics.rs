//! Reads metric lines of every tool and joins them by step, and evaluations by version and set.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_config::{RunDir, paths};

/// Numbers by name, in order of their first appearance.
pub type Numbers = Map<String, Value>;

/// The mean reward of a step.
const RAW_REWARD: &str = "rollout/raw_reward";

/// What a run has told so far.
#[derive(Debug, Default)]
pub struct Metrics {
    /// The numbers of every tool about one step.
    pub steps: BTreeMap<u64, Numbers>,
    /// The numbers of one evaluation, by version and set.
    pub evals: BTreeMap<(u64, String), Numbers>,
    /// How the run ended, or `unfinished`.
    pub outcome: String,
}

/// Reads the metric lines of a stream.
pub fn read_lines(text: &str, name: &str) -> Result<Metrics, Failure> {
    let mut metrics = Metrics { outcome: "unfinished".to_owned(), ..Metrics::default() };
    metrics.add(text, name)?;
    Ok(metrics)
}

/// Reads a run directory.
pub fn read(run: &str) -> Result<Metrics, Failure> {
    let mut metrics = Metrics { outcome: "unfinished".to_owned(), ..Metrics::default() };
    let run_dir = RunDir::new(run);
    fs::metadata(run).map_err(|error| Failure::open(run, &error))?;
    if !run_dir.run_toml().exists() && !run_dir.metrics().exists() {
        let message = format!("{run}: not a run directory: it has neither run.toml nor metrics");
        return Err(Failure::new(slime_cli::exit::NO_INPUT, message));
    }
    for path in files(&run_dir.metrics())? {
        let name = path.display().to_string();
        let bytes = fs::read(&path).map_err(|error| Failure::open(&name, &error))?;
        metrics.add(&String::from_utf8_lossy(&bytes), &name)?;
    }
    if let Some(outcome) = outcome(&run_dir) {
        metrics.outcome = outcome;
    }
    Ok(metrics)
}

/// The JSONL files of a folder by name, without those about engines and warnings, which tell of no step; a run that has not measured anything yet has none.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::open(folder.display(), &error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::io(folder.display(), &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_other = name.starts_with("engine-") || name.starts_with("warnings.");
        if path.extension().is_some_and(|extension| extension == "jsonl") && !is_other {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// How the newest attempt ended; `done` when the run is complete and no attempt says more.
fn outcome(run_dir: &RunDir) -> Option<String> {
    let newest = fs::read_dir(run_dir.root())
        .ok()?
        .filter_map(|entry| paths::parse_attempt(entry.ok()?.file_name().to_str()?))
        .max();
    let told = newest.and_then(|attempt| fs::read_to_string(run_dir.outcome(attempt)).ok());
    let told = told.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    told.or_else(|| run_dir.control("done").exists().then(|| "done".to_owned()))
}

impl Metrics {
    /// Adds the lines of one file. A last line without its end is still being written and is left out.
    fn add(&mut self, text: &str, name: &str) -> Result<(), Failure> {
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let broken = |problem: String| Failure::data(format!("{name}: line {}: {problem}", index + 1));
            if line.trim().is_empty() {
                continue;
            }
            let row: Numbers = match serde_json::from_str(line) {
                Ok(row) => row,
                Err(_) if !line.ends_with('\n') => continue,
                Err(error) => {
                    let reason = error.to_string();
                    return Err(broken(reason.split(" at line ").next().unwrap_or_default().to_owned()));
                }
            };
            let whole = |key: &str| row.get(key).and_then(Value::as_u64);
            let numbers = if let Some(set) = row.get("set").and_then(Value::as_str) {
                let version = whole("version")
                    .or_else(|| whole("step"))
                    .ok_or_else(|| broken("an evaluation without version".to_owned()))?;
                self.evals.entry((version, set.to_owned())).or_default()
            } else {
                let step = whole("step").ok_or_else(|| broken("no step".to_owned()))?;
                self.steps.entry(step).or_default()
            };
            // A step that was trained again after a restart has its newest numbers.
            for (key, value) in &row {
                if value.is_number() && !["step", "version", "time"].contains(&key.as_str()) {
                    numbers.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    /// One number of every step that has it.
    pub fn series(&self, key: &str) -> Vec<(u64, f64)> {
        self.steps.iter().filter_map(|(step, numbers)| Some((*step, numbers.get(key)?.as_f64()?))).collect()
    }

    /// The mean reward of every step, also of foreign lines that call it `reward_mean`.
    pub fn rewards(&self) -> Vec<(u64, f64)> {
        let rewards = self.series(RAW_REWARD);
        if rewards.is_empty() { self.series("reward_mean") } else { rewards }
    }

    /// One number of every evaluation of a set.
    pub fn eval_series(&self, set: &str, key: &str) -> Vec<(u64, f64)> {
        let of_set = self.evals.iter().filter(|((_, name), _)| name == set);
        of_set.filter_map(|((version, _), numbers)| Some((*version, numbers.get(key)?.as_f64()?))).collect()
    }

    /// The names of the evaluation sets.
    pub fn sets(&self) -> Vec<&str> {
        let mut sets: Vec<&str> = self.evals.keys().map(|(_, set)| set.as_str()).collect();
        sets.sort_unstable();
        sets.dedup();
        sets
    }
}
