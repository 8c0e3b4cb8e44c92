//! What a run's job did with its time: phases of the steps, how busy the ranks were, who is silent.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use slime_config::RunDir;

use crate::names;
use crate::read_attempts::{Attempt, Note, read_attempts};
use crate::read_job::{Job, read_job};
use crate::read_metrics::{Metrics, Numbers};

/// Ranks write a note about every 30 s: one that missed three is silent.
const SILENT_S: f64 = 90.0;

/// Everything below the table of steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// The newest attempt's job, under Slurm.
    pub job: Option<Job>,
    /// The attempts with their outcome in a word, oldest first.
    pub attempts: Vec<(Attempt, String)>,
    /// Where the time of the steps went.
    pub phases: Option<Phases>,
    /// The ranks of the newest attempt, by kind.
    pub roles: Vec<Role>,
    /// Those of them that should have written a note; only while the attempt runs.
    pub silent: Vec<Silent>,
}

/// Seconds of all steps that told how long they took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Phases {
    /// Such steps.
    pub num_steps: usize,
    /// All their seconds.
    pub total_s: f64,
    /// Seconds of each part, in order of their first appearance; `other` is what no part accounts for.
    pub parts: Vec<(String, f64)>,
}

/// All ranks of one kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Role {
    /// Such as `trainer`.
    pub name: String,
    /// Different ranks.
    pub num_ranks: usize,
    /// Processes beyond the first of each rank.
    pub num_restarts: usize,
    /// Computing time over the time of all processors the ranks had.
    pub cpu_efficiency: Option<f64>,
    /// The largest of a rank.
    pub max_rss_bytes: u64,
    /// What the rank of the newest note does.
    pub section: String,
    /// Age of that note, while the attempt runs.
    pub newest_note_s: Option<f64>,
}

/// A rank that should have written a note.
#[derive(Debug, Clone, PartialEq)]
pub struct Silent {
    /// Such as `trainer.3`.
    pub role: String,
    /// Where it runs.
    pub host: String,
    /// What it did when it was heard last.
    pub section: String,
    /// How long ago that was.
    pub since_s: f64,
}

/// Looks at the attempts of a run and asks Slurm about the newest one's job.
pub fn summarise(run: &str, metrics: &Metrics) -> Summary {
    let attempts = read_attempts(&RunDir::new(run));
    let job = attempts.last().and_then(|attempt| attempt.job_id.as_deref()).map(read_job);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    Summary { phases: phases(metrics), ..judge(attempts, job, now) }
}

fn judge(attempts: Vec<Attempt>, job: Option<Job>, now: f64) -> Summary {
    let num = attempts.len();
    let newest = attempts.last().cloned().unwrap_or_default();
    let newest_word = state(&newest, job.as_ref(), now);
    let is_running = newest_word == "running";
    let word = |(at, attempt): (usize, Attempt)| {
        let word = match &attempt.outcome {
            _ if at + 1 == num => newest_word.clone(),
            Some(word) => word.clone(),
            None => "lost".to_owned(),
        };
        (attempt, word)
    };
    let attempts = attempts.into_iter().enumerate().map(word).collect();
    let latest = latest(&newest.notes);
    let roles = roles(&newest.notes, now, is_running);
    let is_silent = |note: &&Note| is_running && now - note.written > SILENT_S && note.section != "end";
    let silent = latest.into_values().filter(is_silent).map(|note| Silent {
        role: note.role.clone(),
        host: note.host.clone(),
        section: note.section.clone(),
        since_s: now - note.written,
    });
    Summary { job, attempts, phases: None, roles, silent: silent.collect() }
}

/// The outcome of the newest attempt, or what can be told without one.
fn state(attempt: &Attempt, job: Option<&Job>, now: f64) -> String {
    if let Some(word) = &attempt.outcome {
        return word.clone();
    }
    let is_fresh = |note: &Note| now - note.written <= SILENT_S;
    let word = match job {
        Some(job) if job.is_running() => "running",
        // The queue says that nothing runs, so the outcome will not come any more.
        Some(job) if job.state.is_some() => "lost",
        _ if attempt.notes.iter().any(is_fresh) => "running",
        _ if attempt.notes.is_empty() => "unfinished",
        _ => "lost",
    };
    word.to_owned()
}

/// The newest note of every rank.
fn latest(notes: &[Note]) -> BTreeMap<&str, &Note> {
    let mut latest: BTreeMap<&str, &Note> = BTreeMap::new();
    for note in notes {
        let newest = latest.entry(&note.role).or_insert(note);
        if note.written >= newest.written {
            *newest = note;
        }
    }
    latest
}

fn roles(notes: &[Note], now: f64, is_running: bool) -> Vec<Role> {
    let mut kinds: BTreeMap<&str, Vec<&Note>> = BTreeMap::new();
    for note in notes {
        let kind = note.role.split_once('.').map_or(note.role.as_str(), |(kind, _)| kind);
        kinds.entry(kind).or_default().push(note);
    }
    let role = |(name, notes): (&str, Vec<&Note>)| {
        let mut ranks: Vec<&str> = notes.iter().map(|note| note.role.as_str()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let had: f64 = notes.iter().map(|note| note.wall_s * note.num_cpus).sum();
        let used: f64 = notes.iter().map(|note| note.cpu_s).sum();
        let newest = notes.iter().max_by(|a, b| a.written.total_cmp(&b.written));
        Role {
            name: name.to_owned(),
            num_ranks: ranks.len(),
            num_restarts: notes.len() - ranks.len(),
            cpu_efficiency: (had > 0.0).then(|| used / had),
            max_rss_bytes: notes.iter().map(|note| note.max_rss_bytes).max().unwrap_or(0),
            section: newest.map(|note| note.section.clone()).unwrap_or_default(),
            // Clocks of nodes differ a little.
            newest_note_s: newest.filter(|_| is_running).map(|note| (now - note.written).max(0.0)),
        }
    };
    kinds.into_iter().map(role).collect()
}

/// The parts of each step that told how long it took: those of [`names::phases`], or in older runs every `<part>_s`.
fn phases(metrics: &Metrics) -> Option<Phases> {
    let mut phases = Phases::default();
    for numbers in metrics.steps.values() {
        let Some(step_s) = names::number(numbers, names::STEP_TIME) else { continue };
        phases.num_steps += 1;
        phases.total_s += step_s;
        for (part, seconds) in parts(numbers) {
            match phases.parts.iter_mut().find(|(name, _)| *name == part) {
                Some((_, sum)) => *sum += seconds,
                None => phases.parts.push((part, seconds)),
            }
        }
    }
    let told: f64 = phases.parts.iter().map(|(_, seconds)| seconds).sum();
    // Tools that work at the same time tell more than the step took.
    if told < phases.total_s {
        phases.parts.push(("other".to_owned(), phases.total_s - told));
    }
    (phases.total_s > 0.0).then_some(phases)
}

/// Name and seconds of each part of a step.
fn parts(numbers: &Numbers) -> Vec<(String, f64)> {
    if numbers.contains_key(names::STEP_TIME) {
        return names::phases(numbers).into_iter().map(|(label, s)| (label.to_owned(), s)).collect();
    }
    let part = |(key, value): (&String, &Value)| {
        let is_part = key != "step_s" && !key.ends_with("_per_s");
        Some((key.strip_suffix("_s").filter(|_| is_part)?.to_owned(), value.as_f64().unwrap_or(0.0)))
    };
    numbers.iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(role: &str, pid: u32, written: f64) -> Note {
        let (role, host, section) = (role.to_owned(), "n1".to_owned(), "train".to_owned());
        let (wall_s, cpu_s, num_cpus) = (100.0, 120.0, 2.0);
        Note { role, host, pid, section, wall_s, cpu_s, num_cpus, max_rss_bytes: u64::from(pid), written }
    }

    fn attempt(number: u32, outcome: Option<&str>, notes: Vec<Note>) -> Attempt {
        Attempt { number, outcome: outcome.map(str::to_owned), notes, ..Attempt::default() }
    }

    fn job(state: Option<&str>) -> Job {
        Job { id: "7".to_owned(), state: state.map(str::to_owned), ..Job::default() }
    }

    #[test]
    fn attempt_without_outcome_runs_or_is_lost() {
        let word =
            |attempt: Attempt, job: Option<Job>| judge(vec![attempt], job, 1000.0).attempts[0].1.clone();
        let fresh = || attempt(0, None, vec![note("trainer.0", 1, 990.0)]);
        let old = || attempt(0, None, vec![note("trainer.0", 1, 800.0)]);
        assert_eq!(word(old(), Some(job(Some("RUNNING")))), "running");
        assert_eq!(word(fresh(), Some(job(Some("FAILED")))), "lost");
        // The queue forgets jobs, and a workstation has none.
        assert_eq!((word(fresh(), Some(job(None))), word(old(), None)), ("running".into(), "lost".into()));
        assert_eq!(word(attempt(0, None, Vec::new()), None), "unfinished");
        assert_eq!(word(attempt(0, Some("drained"), vec![note("trainer.0", 1, 990.0)]), None), "drained");
        let two = judge(vec![attempt(0, None, Vec::new()), fresh()], None, 1000.0);
        assert_eq!(two.attempts[0].1, "lost");
    }

    #[test]
    fn roles_add_up_their_ranks_and_silent_ones_are_named() {
        let notes = vec![
            note("trainer.0", 10, 995.0),
            note("trainer.1", 11, 800.0),
            note("replica.0", 12, 700.0),
            note("replica.0", 13, 999.0),
        ];
        let summary = judge(vec![attempt(0, None, notes.clone())], None, 1000.0);
        let trainer = summary.roles.iter().find(|role| role.name == "trainer").unwrap();
        assert_eq!((trainer.num_ranks, trainer.num_restarts, trainer.max_rss_bytes), (2, 0, 11));
        assert_eq!(trainer.cpu_efficiency, Some(0.6));
        assert_eq!(trainer.newest_note_s, Some(5.0));
        let replica = summary.roles.iter().find(|role| role.name == "replica").unwrap();
        assert_eq!((replica.num_ranks, replica.num_restarts), (1, 1));
        assert_eq!(summary.silent.len(), 1);
        assert_eq!((summary.silent[0].role.as_str(), summary.silent[0].since_s), ("trainer.1", 200.0));
        let mut left = notes.clone();
        left[1].section = "end".to_owned();
        assert!(judge(vec![attempt(0, None, left)], None, 1000.0).silent.is_empty(), "it ended by itself");
        let ended = judge(vec![attempt(0, Some("done"), notes)], None, 1000.0);
        assert!(ended.silent.is_empty());
        assert_eq!(ended.roles[0].newest_note_s, None);
    }

    #[test]
    fn phases_are_what_the_steps_tell_and_the_rest() {
        let step = |text: &str| serde_json::from_str(text).unwrap();
        let mut metrics = Metrics::default();
        metrics.steps.insert(0, step("{\"train_s\":2.0,\"step_s\":10.0,\"tokens_per_s\":100.0}"));
        metrics.steps.insert(1, step("{\"train_s\":3.0,\"sync_s\":1.0,\"step_s\":10.0}"));
        metrics.steps.insert(2, step("{\"reward_mean\":0.5}"));
        let phases = super::phases(&metrics).unwrap();
        assert_eq!((phases.num_steps, phases.total_s), (2, 20.0));
        let parts = [("train", 5.0), ("sync", 1.0), ("other", 14.0)].map(|(name, s)| (name.to_owned(), s));
        assert_eq!(phases.parts, parts);
        assert_eq!(super::phases(&Metrics::default()), None);
        let mut metrics = Metrics::default();
        let named = "{\"perf/step_time\":10,\"perf/train_time\":7,\"perf/actor_train_time\":6,\"perf/train_wait_time\":3}";
        metrics.steps.insert(0, step(named));
        let parts =
            [("wait for samples", 3.0), ("train", 6.0), ("other", 1.0)].map(|(name, s)| (name.to_owned(), s));
        assert_eq!(super::phases(&metrics).unwrap().parts, parts, "train_time holds others and is no part");
    }
}
