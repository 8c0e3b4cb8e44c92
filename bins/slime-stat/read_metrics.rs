//! Reads metric lines of every tool and joins them by step, and evaluations by version and set.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use slime_cli::Failure;
use slime_config::{RunDir, paths};

use crate::names::{self, REWARD_MEAN};

/// Numbers by name, in order of their first appearance.
pub type Numbers = Map<String, Value>;

/// Files that tell about other things than steps; their own readers look at them.
const OTHERS: [&str; 2] = ["engine-", "warnings"];
/// Counts that a row names only where there is something to count.
const COUNTS: [&str; 3] = ["rollout/zero_std/count_", "rollout/dynamic_filter/drop_", "rollout/staleness/"];
/// Broken lines of a file that are told one by one.
const MAX_TOLD: usize = 3;

/// What a run has told so far.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// The numbers of every tool about one step.
    pub steps: BTreeMap<u64, Numbers>,
    /// The numbers of one evaluation, by version and set.
    pub evals: BTreeMap<(u64, String), Numbers>,
    /// When the row of a step was written, seconds since 1970, by step and tool.
    pub times: BTreeMap<(u64, String), f64>,
    /// Which tool tells each number of the steps.
    pub tools: HashMap<String, String>,
    /// How the run ended, or `unfinished`.
    pub outcome: String,
    /// What could not be shown, one sentence each.
    pub missing: Vec<String>,
}

/// Reads the metric lines of a stream.
pub fn read_lines(text: &str, name: &str) -> Result<Metrics, Failure> {
    let mut metrics = Metrics { outcome: "unfinished".to_owned(), ..Metrics::default() };
    let broken = metrics.add(text, name);
    match broken.lines.into_iter().next() {
        Some(problem) => Err(Failure::data(problem)),
        None => Ok(metrics),
    }
}

/// Reads a run directory: its metric files, as far as they are readable.
pub fn read(run: &str) -> Result<Metrics, Failure> {
    let mut metrics = Metrics { outcome: "unfinished".to_owned(), ..Metrics::default() };
    let run_dir = RunDir::new(run);
    fs::metadata(run).map_err(|error| no_run(run, &error))?;
    if !run_dir.run_toml().exists() && !run_dir.metrics().exists() {
        let message = format!("{run}: not a run directory: it has neither run.toml nor metrics");
        return Err(Failure::new(slime_cli::exit::NO_INPUT, message)
            .with_hint("a job makes both at its first start: `squeue --me` says whether it waits"));
    }
    for path in files(&run_dir.metrics())? {
        metrics.add_file(&path)?;
    }
    if let Some(outcome) = outcome(&run_dir) {
        metrics.outcome = outcome;
    }
    Ok(metrics)
}

/// A run directory that is not there is one that a waiting job has not made yet, or a wrong name.
fn no_run(run: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::open(run, error);
    match error.kind() {
        ErrorKind::NotFound => failure.with_hint(
            "a job makes its run directory at its first start: `squeue --me` says whether it still waits",
        ),
        _ => failure,
    }
}

/// The JSONL files of a folder about steps by name; a run that has not measured anything yet has none.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::open(folder.display(), &error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Failure::io(folder.display(), &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_jsonl = Path::new(&name).extension().is_some_and(|extension| extension == "jsonl");
        if is_jsonl && !OTHERS.iter().any(|other| name.starts_with(other)) {
            paths.push(entry.path());
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

/// What was wrong with the lines of one file.
#[derive(Default)]
struct Broken {
    lines: Vec<String>,
    num_good: usize,
    ends_torn: bool,
}

impl Metrics {
    /// Adds what can be read of one file; a file of which nothing can be read is an error.
    fn add_file(&mut self, path: &Path) -> Result<(), Failure> {
        let name = path.display().to_string();
        let bytes = fs::read(path).map_err(|error| Failure::open(&name, &error))?;
        let broken = self.add(&String::from_utf8_lossy(&bytes), &name);
        let num_broken = broken.lines.len();
        if broken.num_good == 0
            && let Some(problem) = broken.lines.into_iter().next()
        {
            return Err(Failure::data(problem));
        } else if num_broken > 0 {
            let lines = if num_broken == 1 { "line is" } else { "lines are" };
            self.missing.push(format!("{name}: {num_broken} broken {lines} left out"));
        }
        if broken.ends_torn {
            self.missing.push(format!("{name}: its last line is still being written, or its writer died"));
        }
        Ok(())
    }

    /// Adds the lines of one file. A last line without its end is still being written and is left out.
    fn add(&mut self, text: &str, name: &str) -> Broken {
        let mut broken = Broken::default();
        for (index, line) in text.split_inclusive('\n').enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let added = match serde_json::from_str(line) {
                Ok(row) => self.add_row(&row),
                Err(_) if !line.ends_with('\n') => {
                    broken.ends_torn = true;
                    continue;
                }
                Err(error) => Err(error.to_string().split(" at line ").next().unwrap_or_default().to_owned()),
            };
            match added {
                Ok(()) => broken.num_good += 1,
                Err(problem) => {
                    let problem = format!("{name}: line {}: {problem}", index + 1);
                    if broken.lines.len() < MAX_TOLD {
                        tracing::debug!("{problem}");
                    }
                    broken.lines.push(problem);
                }
            }
        }
        broken
    }

    fn add_row(&mut self, row: &Numbers) -> Result<(), String> {
        let whole = |key: &str| row.get(key).and_then(Value::as_u64);
        let numbers = if let Some(set) = row.get("set").and_then(Value::as_str) {
            let version =
                whole("version").or_else(|| whole("step")).ok_or("an evaluation without version")?;
            self.evals.entry((version, set.to_owned())).or_default()
        } else {
            let step = whole("step").ok_or("no step")?;
            let tool = row.get("tool").and_then(Value::as_str).unwrap_or_default();
            for key in row.keys().filter(|key| !self.tools.contains_key(*key)).cloned().collect::<Vec<_>>() {
                self.tools.insert(key, tool.to_owned());
            }
            if let Some(time) = row.get("time").and_then(Value::as_f64) {
                self.times.insert((step, tool.to_owned()), time);
            }
            self.steps.entry(step).or_default()
        };
        // A step that was trained again after a restart has its newest numbers.
        for (key, value) in row {
            if value.is_number() && !["step", "version"].contains(&key.as_str()) {
                numbers.insert(key.clone(), value.clone());
            }
        }
        if let (None, Some(reward)) = (numbers.get(REWARD_MEAN), numbers.get(names::REWARD).cloned()) {
            numbers.insert(REWARD_MEAN.to_owned(), reward);
        } else if let Some(reward) = row.get(names::REWARD).filter(|reward| reward.is_number()) {
            numbers.insert(REWARD_MEAN.to_owned(), reward.clone());
        }
        Ok(())
    }

    /// One number of every step that has it, under its name of today; a count that the row does not name is 0.
    pub fn series(&self, name: &str) -> Vec<(u64, f64)> {
        let is_count = COUNTS.iter().any(|head| name.starts_with(head)) && self.tools.contains_key(name);
        let value = |numbers: &Numbers| {
            let unnamed = || (is_count && self.has_rollout_of(numbers, name)).then_some(0.0);
            names::number(numbers, name).or_else(unnamed)
        };
        self.steps.iter().filter_map(|(step, numbers)| Some((*step, value(numbers)?))).collect()
    }

    /// Whether a row has other numbers of the rollout from the tool that tells `name`.
    fn has_rollout_of(&self, numbers: &Numbers, name: &str) -> bool {
        let tool = self.tools.get(name);
        numbers.keys().any(|key| key.starts_with("rollout/") && self.tools.get(key) == tool)
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

    /// Every name that some step has, those first that a reader looks for first.
    pub fn names(&self) -> Vec<&str> {
        let mut names = std::collections::HashSet::new();
        for numbers in self.steps.values() {
            names.extend(numbers.keys().map(String::as_str));
        }
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable_by_key(|name| (names::rank(name), *name));
        names
    }

    /// How many steps were trained.
    pub fn num_trained(&self) -> u64 {
        self.steps.values().filter(|numbers| names::is_trained(numbers)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_that_is_not_named_is_zero_where_the_rollout_told_anything() {
        let text = "{\"step\":0,\"tool\":\"rollout\",\"rollout/zero_std_ratio\":0.5,\"rollout/zero_std/count_0.0\":3}\n\
                    {\"step\":1,\"tool\":\"rollout\",\"rollout/zero_std_ratio\":0}\n\
                    {\"step\":2,\"tool\":\"train\",\"rollout/raw_reward\":1}\n";
        let metrics = read_lines(text, "stdin").unwrap();
        assert_eq!(metrics.series("rollout/zero_std/count_0.0"), [(0, 3.0), (1, 0.0)]);
        assert_eq!(metrics.series("rollout/zero_std/count_1.0"), []);
        assert_eq!(metrics.series("rollout/raw_reward"), [(2, 1.0)]);
    }
}
