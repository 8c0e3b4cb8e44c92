//! Reads what the attempts of a run's job left: how each ended, who failed, and the notes of the ranks.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use slime_config::{RunDir, paths};

/// One start of the job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attempt {
    /// 0, 1, 2, ..
    pub number: u32,
    /// One word; none while it runs, and after the node died.
    pub outcome: Option<String>,
    /// The ranks that failed, by role.
    pub failures: Vec<Failed>,
    /// The job's number in Slurm.
    pub job_id: Option<String>,
    /// What the ranks said last, by role and age.
    pub notes: Vec<Note>,
}

/// Why a rank failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Such as `trainer.2`.
    pub role: String,
    /// Its exit code, where the file tells it.
    pub code: Option<u8>,
    /// Its message.
    pub message: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

/// A rank about itself, written again from time to time.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Note {
    /// Such as `trainer.0`.
    pub role: String,
    /// Where it runs.
    #[serde(default)]
    pub host: String,
    /// Its process; another one of the same role is a restart.
    #[serde(default)]
    pub pid: u32,
    /// What it does.
    #[serde(default)]
    pub section: String,
    /// Seconds since its start.
    #[serde(default)]
    pub wall_s: f64,
    /// Seconds of computing, all threads together.
    #[serde(default)]
    pub cpu_s: f64,
    /// Processors it may use.
    #[serde(default)]
    pub num_cpus: f64,
    /// Its peak memory.
    #[serde(default)]
    pub max_rss_bytes: u64,
    /// When it wrote this, seconds since 1970.
    #[serde(default)]
    pub written: f64,
}

/// The attempts of the run, oldest first; none in runs without a job script.
pub fn read_attempts(run_dir: &RunDir) -> Vec<Attempt> {
    let mut numbers: Vec<u32> =
        names(run_dir.root()).iter().filter_map(|name| paths::parse_attempt(name)).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| read_attempt(run_dir, number)).collect()
}

fn read_attempt(run_dir: &RunDir, number: u32) -> Attempt {
    let folder = run_dir.attempt(number);
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let outcome = read("outcome").map(|text| text.trim().to_owned()).filter(|word| !word.is_empty());
    let env = read("env.txt").unwrap_or_default();
    let job_id =
        env.lines().find_map(|line| line.strip_prefix("SLURM_JOB_ID=")).map(|id| id.trim().to_owned());
    let failure = |name: &String| Some(parse_failed(name.strip_prefix("failed.")?, &read(name)?));
    let failures = names(&folder).iter().filter_map(failure).collect();
    let mut notes: Vec<Note> = names(&folder.join("rank"))
        .iter()
        .filter(|name| name.strip_suffix(".json").is_some_and(|stem| !stem.starts_with('.')))
        .filter_map(|name| parse_note(&folder.join("rank").join(name)))
        .collect();
    notes.sort_by(|a, b| a.role.cmp(&b.role).then(a.written.total_cmp(&b.written)));
    Attempt { number, outcome, failures, job_id: job_id.filter(|id| !id.is_empty()), notes }
}

/// The names in a folder in their order; none where there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn parse_note(path: &Path) -> Option<Note> {
    let text = fs::read_to_string(path).ok()?;
    serde_json::from_str(&text)
        .inspect_err(|error| tracing::warn!("{}: left out: {error}", path.display()))
        .ok()
}

/// `code N`, then the message, then perhaps `hint: ...`.
fn parse_failed(role: &str, text: &str) -> Failed {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let code = first.trim().strip_prefix("code ").and_then(|code| code.parse().ok());
    let said = if code.is_some() { rest } else { text };
    let (message, hint) = match said.split_once("hint: ") {
        Some((message, hint)) if message.is_empty() || message.ends_with('\n') => (message, Some(hint)),
        _ => (said, None),
    };
    let hint = hint.map(|hint| hint.trim().to_owned());
    Failed { role: role.to_owned(), code, message: message.trim().to_owned(), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_files_are_read_with_and_without_all_parts() {
        let whole = parse_failed("trainer.2", "code 74\nrank 2: a/b: no space\nhint: free some\n");
        let (message, hint) = ("rank 2: a/b: no space".to_owned(), Some("free some".to_owned()));
        assert_eq!(whole, Failed { role: "trainer.2".to_owned(), code: Some(74), message, hint });
        let bare = parse_failed("builder", "it said hint: nothing\n");
        assert_eq!((bare.code, bare.message.as_str(), bare.hint), (None, "it said hint: nothing", None));
        assert_eq!(parse_failed("builder", "").message, "");
    }
}
