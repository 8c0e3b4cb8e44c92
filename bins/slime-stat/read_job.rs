//! Asks Slurm about the run's job, once and with patience of a few seconds; no answer is an answer too.

use std::process::{Command, Stdio};

/// Seconds that `scontrol` may take.
const PATIENCE_S: &str = "5";
/// What timeout(1) exits with when time is up, and when there is no such program.
const TIMED_OUT: i32 = 124;
const NO_PROGRAM: i32 = 127;

/// What the queue says about a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: String,
    /// Such as `RUNNING`; none when the queue did not say.
    pub state: Option<String>,
    /// Why the queue did not say.
    pub problem: Option<String>,
    /// Why it waits or ended.
    pub reason: Option<String>,
    /// Nodes it has, or asks for.
    pub num_nodes: Option<u64>,
    /// Seconds it has run.
    pub run_s: Option<u64>,
    /// Seconds until its time limit.
    pub left_s: Option<u64>,
    /// When it is expected to start, in the cluster's local time.
    pub expected_start: Option<String>,
    /// How often it was requeued.
    pub num_requeues: Option<u64>,
}

impl Job {
    /// Whether its scripts may be at work.
    pub fn is_running(&self) -> bool {
        matches!(self.state.as_deref(), Some("RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED"))
    }
}

/// What `scontrol show job` says.
pub fn read_job(id: &str) -> Job {
    let asked = Command::new("timeout")
        .args([PATIENCE_S, "scontrol", "--oneliner", "show", "job", id])
        .stdin(Stdio::null())
        .output();
    let problem = match asked {
        Ok(output) if output.status.success() => return parse(id, &String::from_utf8_lossy(&output.stdout)),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(NO_PROGRAM) => "there is no scontrol here".to_owned(),
                Some(TIMED_OUT) | None => format!("scontrol did not answer in {PATIENCE_S} s"),
                _ if said.contains("Invalid job id") => "the queue does not know it any more".to_owned(),
                _ => format!("scontrol: {}", said.lines().next().unwrap_or("no answer")),
            }
        }
        Err(error) => format!("scontrol was not asked: timeout(1): {error}"),
    };
    Job { id: id.to_owned(), problem: Some(problem), ..Job::default() }
}

/// The line of one job: `JobId=7 JobName=x ... JobState=RUNNING Reason=None ...`.
fn parse(id: &str, text: &str) -> Job {
    let line = text.lines().next().unwrap_or_default();
    let field = |name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.filter(|value| !matches!(*value, "" | "None" | "Unknown" | "N/A" | "(null)"))
    };
    let Some(state) = field("JobState") else {
        let problem = Some("scontrol did not tell its state".to_owned());
        return Job { id: id.to_owned(), problem, ..Job::default() };
    };
    let run_s = field("RunTime").and_then(seconds);
    let is_running = state == "RUNNING";
    let limit = field("TimeLimit").and_then(seconds).filter(|_| is_running);
    Job {
        id: id.to_owned(),
        state: Some(state.to_owned()),
        problem: None,
        reason: field("Reason").map(str::to_owned),
        // A pending job may ask for a range: `2-4`.
        num_nodes: field("NumNodes").and_then(|nodes| nodes.split('-').next()?.parse().ok()),
        run_s,
        left_s: limit.zip(run_s).map(|(limit, run)| limit.saturating_sub(run)),
        expected_start: field("StartTime").filter(|_| state == "PENDING").map(str::to_owned),
        num_requeues: field("Restarts").and_then(|restarts| restarts.parse().ok()),
    }
}

/// `[days-]hours:minutes:seconds`; none for UNLIMITED.
fn seconds(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let days: u64 = days.parse().ok()?;
    let parts: Vec<u64> = clock.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hours, minutes, seconds] = parts.as_slice() else { return None };
    Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_scontrol_are_read() {
        let running = parse(
            "7",
            "JobId=7 JobName=a b JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 \
             RunTime=1-00:01:00 TimeLimit=1-00:10:00 StartTime=2026-11-30T05:00:00 NumNodes=4 NumCPUs=4\n",
        );
        assert!(running.is_running());
        assert_eq!((running.left_s, running.num_nodes, running.num_requeues), (Some(540), Some(4), Some(2)));
        assert_eq!((running.reason, running.expected_start), (None, None));
        let pending = parse(
            "8",
            "JobId=8 JobState=PENDING Reason=Resources RunTime=00:00:00 TimeLimit=UNLIMITED \
             StartTime=2026-11-30T06:00:00 NumNodes=2-4",
        );
        assert!(!pending.is_running());
        assert_eq!(pending.expected_start.as_deref(), Some("2026-11-30T06:00:00"));
        assert_eq!((pending.left_s, pending.num_nodes), (None, Some(2)));
        assert_eq!(pending.reason.as_deref(), Some("Resources"));
        let unlimited = parse("9", "JobState=RUNNING RunTime=00:01:00 TimeLimit=UNLIMITED StartTime=Unknown");
        assert_eq!((unlimited.left_s, unlimited.run_s), (None, Some(60)));
        assert!(parse("9", "").problem.is_some());
    }
}
