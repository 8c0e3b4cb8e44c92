//! The job, its attempts, phases and efficiency, as lines for people and as JSON.

use serde_json::{Map, Value, json};

use crate::read_job::Job;
use crate::summarise::{Phases, Role, Summary};

/// The block below the table; nothing of a run that says nothing about it.
pub fn text(summary: &Summary) -> String {
    let mut lines = Vec::new();
    lines.extend(summary.job.as_ref().map(job_line));
    if !summary.attempts.is_empty() {
        lines.push(attempts_line(summary));
    }
    lines.extend(summary.phases.as_ref().map(phases_line));
    lines.extend(role_lines(&summary.roles));
    for silent in &summary.silent {
        lines.push(format!(
            "{} silent for {:.0} s in {} (on {})",
            silent.role, silent.since_s, silent.section, silent.host
        ));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn job_line(job: &Job) -> String {
    let mut line = format!("job {}", job.id);
    let Some(state) = &job.state else {
        return line + &job.problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
    };
    line.extend([format!(" {state}")]);
    line += &job.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    line += &job.num_nodes.map(|num| format!(" on {num} node{}", plural(num))).unwrap_or_default();
    if let Some(left) = job.left_s {
        line.extend([format!(", {} left", clock(left))]);
    } else if let Some(run) = job.run_s.filter(|run| *run > 0) {
        line.extend([format!(", after {}", clock(run))]);
    }
    line + &job.expected_start.as_ref().map(|time| format!(", expected to start {time}")).unwrap_or_default()
}

fn attempts_line(summary: &Summary) -> String {
    let attempt = |(attempt, word): &(crate::read_attempts::Attempt, String)| {
        let failure = |failed: &crate::read_attempts::Failed| {
            let code = failed.code.map(|code| format!(" code {code}")).unwrap_or_default();
            let message = failed.message.lines().next().unwrap_or_default();
            format!("{}{code}: {message}", failed.role)
        };
        let failures: Vec<String> = attempt.failures.iter().map(failure).collect();
        if failures.is_empty() { word.clone() } else { format!("{word}: {}", failures.join("; ")) }
    };
    let words: Vec<String> = summary.attempts.iter().map(attempt).collect();
    let restarts: usize = summary.roles.iter().map(|role| role.num_restarts).sum();
    let restarts =
        if restarts == 0 { String::new() } else { format!(", tools restarted in the newest: {restarts}") };
    format!("attempts: {} ({}){restarts}", words.len(), words.join(", "))
}

fn phases_line(phases: &Phases) -> String {
    let parts: Vec<String> = phases
        .parts
        .iter()
        .map(|(name, seconds)| format!("{name} {:.0} %", 100.0 * seconds / phases.total_s))
        .collect();
    let steps = phases.num_steps;
    let total = clock(phases.total_s as u64);
    format!("time by phase: {} (of {steps} step{}, {total})", parts.join(", "), plural(steps as u64))
}

fn role_lines(roles: &[Role]) -> Vec<String> {
    if roles.is_empty() {
        return Vec::new();
    }
    let mut rows =
        vec![["role", "ranks", "restarts", "cpu", "peak memory", "newest note"].map(str::to_owned)];
    for role in roles {
        let age = role.newest_note_s.map(|age| format!("{age:.0} s ago, ")).unwrap_or_default();
        rows.push([
            role.name.clone(),
            role.num_ranks.to_string(),
            role.num_restarts.to_string(),
            role.cpu_efficiency.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            format!("{:.2} GB", role.max_rss_bytes as f64 / 1e9),
            format!("{age}in {}", role.section),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &[String; 6]| {
        let cell = |(at, text): (usize, &String)| match at {
            0 | 5 => format!("{text:<width$}", width = widths[at]),
            _ => format!("{text:>width$}", width = widths[at]),
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn plural(num: u64) -> &'static str {
    if num == 1 { "" } else { "s" }
}

/// `[days-]hours:minutes:seconds`, as Slurm writes it.
fn clock(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let clock = format!("{hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    if days == 0 { clock } else { format!("{days}-{clock}") }
}

/// The keys `job`, `attempts`, `phases` and `efficiency`.
pub fn json(summary: &Summary) -> Map<String, Value> {
    let job = summary.job.as_ref().map(|job| {
        json!({
            "id": job.id, "state": job.state, "problem": job.problem, "reason": job.reason,
            "num_nodes": job.num_nodes, "run_s": job.run_s, "left_s": job.left_s,
            "expected_start": job.expected_start, "num_requeues": job.num_requeues,
        })
    });
    let attempts: Vec<Value> = summary
        .attempts
        .iter()
        .map(|(attempt, word)| {
            let failures: Vec<Value> = attempt
                .failures
                .iter()
                .map(|f| json!({"role": f.role, "code": f.code, "message": f.message, "hint": f.hint}))
                .collect();
            json!({"attempt": attempt.number, "outcome": word, "job_id": attempt.job_id, "failures": failures})
        })
        .collect();
    let phases = summary.phases.as_ref().map(|phases| {
        let part = |(name, seconds): &(String, f64)| {
            (name.clone(), json!({"seconds": seconds, "share": seconds / phases.total_s}))
        };
        let parts: Map<String, Value> = phases.parts.iter().map(part).collect();
        json!({"num_steps": phases.num_steps, "total_s": phases.total_s, "parts": parts})
    });
    let roles: Vec<Value> = summary
        .roles
        .iter()
        .map(|role| {
            json!({
                "role": role.name, "num_ranks": role.num_ranks, "num_restarts": role.num_restarts,
                "cpu_efficiency": role.cpu_efficiency, "max_rss_bytes": role.max_rss_bytes,
                "section": role.section, "newest_note_s": role.newest_note_s,
            })
        })
        .collect();
    let silent: Vec<Value> = summary
        .silent
        .iter()
        .map(|s| json!({"role": s.role, "host": s.host, "section": s.section, "silent_s": s.since_s}))
        .collect();
    let mut keys = Map::new();
    keys.insert("job".to_owned(), json!(job));
    keys.insert("attempts".to_owned(), json!(attempts));
    keys.insert("phases".to_owned(), json!(phases));
    keys.insert("efficiency".to_owned(), json!({"roles": roles, "silent": silent}));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_slurm_writes_them() {
        assert_eq!(clock(1870), "00:31:10");
        assert_eq!(clock(86_400 + 61), "1-00:01:01");
    }

    #[test]
    fn job_line_says_what_the_queue_says() {
        let job = |state: &str| Job { id: "7".into(), state: Some(state.into()), ..Job::default() };
        let running = Job { num_nodes: Some(4), left_s: Some(1870), run_s: Some(5), ..job("RUNNING") };
        assert_eq!(job_line(&running), "job 7 RUNNING on 4 nodes, 00:31:10 left");
        let start = Some("2026-11-30T10:00:00".to_owned());
        let reason = Some("Resources".to_owned());
        let pending = Job { reason, num_nodes: Some(1), expected_start: start, ..job("PENDING") };
        let expected = "job 7 PENDING (Resources) on 1 node, expected to start 2026-11-30T10:00:00";
        assert_eq!(job_line(&pending), expected);
        let unknown = Job { id: "7".into(), problem: Some("nobody knows".into()), ..Job::default() };
        assert_eq!(job_line(&unknown), "job 7: nobody knows");
    }
}
