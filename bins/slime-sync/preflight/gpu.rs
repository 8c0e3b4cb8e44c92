//! How many GPUs this node shows, and whether their memory is healthy, as `nvidia-smi` tells.

use std::fs;
use std::process::{Command, Stdio};

use super::check::{Check, Verdict};

/// Seconds `nvidia-smi` may take: it hangs where a driver does.
const PATIENCE_S: &str = "20";
/// What timeout(1) exits with when time is up, and when there is no such program.
const TIMED_OUT: i32 = 124;
const NO_PROGRAM: i32 = 127;
const RESET: &str = "drain the node and reset the GPU (nvidia-smi -r) or reboot";

/// Whether this node has the device files of a GPU.
pub fn has_devices() -> bool {
    num_devices() > 0
}

fn num_devices() -> usize {
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count()
}

/// The number of GPUs and their health.
pub fn gpus(expected: Option<usize>) -> Vec<Check> {
    let listed = match ask(&["-L"]) {
        Answer::Text(text) => Some(text.lines().filter(|line| line.starts_with("GPU ")).count()),
        Answer::NoProgram => None,
        Answer::Failed(got) => {
            let is_gpu_node = has_devices() || expected.is_some_and(|n| n > 0);
            let verdict = if is_gpu_node { Verdict::Bad } else { Verdict::Warn };
            let hint = "the driver does not answer: look at dmesg for Xid errors, reset or reboot the node";
            return vec![Check::judged("gpus", verdict, got, "nvidia-smi answers", hint)];
        }
    };
    let seen = Seen { listed, devices: num_devices(), allowed: allowed(&|name| std::env::var(name).ok()) };
    let mut checks = vec![seen.judge(expected)];
    if listed.is_some_and(|n| n > 0) {
        checks.extend(health());
    }
    checks
}

/// What different sources say about the number of GPUs.
struct Seen {
    listed: Option<usize>,
    devices: usize,
    /// By the variable of this name.
    allowed: Option<(&'static str, usize)>,
}

impl Seen {
    fn judge(&self, expected: Option<usize>) -> Check {
        const NAME: &str = "gpus";
        const HINT: &str = "ask Slurm for them (--gpus-per-node), or look at nvidia-smi on the node";
        let present = self.listed.or((self.devices > 0).then_some(self.devices));
        let source = if self.listed.is_some() { "nvidia-smi" } else { "/dev/nvidia*" };
        let mut told: Vec<String> = present.map(|n| format!("{n} by {source}")).into_iter().collect();
        told.extend(self.allowed.map(|(name, n)| format!("{n} by {name}")));
        let got = if told.is_empty() { "0".to_owned() } else { told.join(", ") };
        let num = match (present, self.allowed) {
            (Some(present), Some((_, allowed))) => present.min(allowed),
            (Some(num), None) | (None, Some((_, num))) => num,
            (None, None) => 0,
        };
        let Some(expected) = expected else { return Check::ok(NAME, got) };
        match num.cmp(&expected) {
            std::cmp::Ordering::Less => Check::bad(NAME, got, expected, HINT),
            std::cmp::Ordering::Greater => Check::warn(NAME, got, expected, "the others stay idle"),
            std::cmp::Ordering::Equal if present.is_none() && num > 0 => {
                let got = format!("{got}, but no nvidia-smi and no /dev/nvidia*");
                Check::warn(NAME, got, expected, "load the driver, or put nvidia-smi on PATH")
            }
            std::cmp::Ordering::Equal => Check::ok(NAME, got),
        }
    }
}

/// The number of GPUs that Slurm or the user lets this process see.
fn allowed(variable: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, usize)> {
    if let Some(list) = variable("CUDA_VISIBLE_DEVICES") {
        // CUDA stops at the first entry that is none; Slurm writes NoDevFiles where a step has no GPU.
        let is_device = |entry: &&str| {
            entry.bytes().all(|b| b.is_ascii_digit()) && !entry.is_empty()
                || entry.starts_with("GPU-")
                || entry.starts_with("MIG-")
        };
        return Some(("CUDA_VISIBLE_DEVICES", list.split(',').map(str::trim).take_while(is_device).count()));
    }
    let num = variable("SLURM_GPUS_ON_NODE")?.trim().parse().ok()?;
    Some(("SLURM_GPUS_ON_NODE", num))
}

/// Errors of the GPUs' memory; a query that this driver does not know is no finding.
fn health() -> Vec<Check> {
    let ecc = ask(&["--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]);
    let rows = "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure";
    let rows = ask(&[rows, "--format=csv,noheader"]);
    let recovery = ask(&["--query-gpu=index,gpu_recovery_action", "--format=csv,noheader"]);
    vec![
        findings("gpu_ecc", ecc, "0 uncorrected errors", ecc_error),
        findings("gpu_remapped_rows", rows, "no row remapping pending or failed", remapping),
        findings("gpu_recovery", recovery, "no recovery action (Xid) asked for", recovery_action),
    ]
}

/// A check over the rows of an answer in CSV; `finding` turns what is wrong with a row into words.
fn findings(name: &str, answer: Answer, expected: &str, finding: fn(&[&str]) -> Option<String>) -> Check {
    let text = match answer {
        Answer::Text(text) => text,
        Answer::Failed(got) if got.contains("no answer") => return Check::bad(name, got, expected, RESET),
        Answer::Failed(_) | Answer::NoProgram => return Check::ok(name, "not told by this driver"),
    };
    let found: Vec<String> = text
        .lines()
        .filter_map(|line| finding(&line.split(',').map(str::trim).collect::<Vec<_>>()))
        .collect();
    if found.is_empty() {
        Check::ok(name, "none")
    } else {
        Check::bad(name, found.join("; "), expected, RESET)
    }
}

/// `0, 3`: an index and a count; what is not supported stands in brackets.
fn ecc_error(fields: &[&str]) -> Option<String> {
    let [index, count] = fields else { return None };
    let count: u64 = count.parse().ok().filter(|count| *count > 0)?;
    Some(format!("GPU {index} has {count}"))
}

/// `GPU-<uuid>, No, No`; old drivers count instead.
fn remapping(fields: &[&str]) -> Option<String> {
    let [uuid, pending, failure] = fields else { return None };
    let is_set = |field: &str| field.eq_ignore_ascii_case("yes") || field.parse().is_ok_and(|n: u64| n > 0);
    let uuid = uuid.get(..12).unwrap_or(uuid);
    match (is_set(pending), is_set(failure)) {
        (_, true) => Some(format!("{uuid}.. failed")),
        (true, false) => Some(format!("{uuid}.. pending")),
        (false, false) => None,
    }
}

/// `0, None`.
fn recovery_action(fields: &[&str]) -> Option<String> {
    let [index, action] = fields else { return None };
    let is_none = action.eq_ignore_ascii_case("none") || action.trim_matches(['[', ']']) == "N/A";
    let is_told = !is_none && !action.is_empty() && !action.starts_with('[');
    is_told.then(|| format!("GPU {index} wants {action}"))
}

/// What `nvidia-smi` said.
enum Answer {
    Text(String),
    Failed(String),
    NoProgram,
}

fn ask(arguments: &[&str]) -> Answer {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", PATIENCE_S, "nvidia-smi"]).args(arguments).stdin(Stdio::null());
    match command.output() {
        Err(_) => Answer::NoProgram,
        Ok(output) if output.status.success() => {
            Answer::Text(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => match output.status.code() {
            Some(NO_PROGRAM) => Answer::NoProgram,
            Some(TIMED_OUT) | None => Answer::Failed(format!("nvidia-smi: no answer in {PATIENCE_S} s")),
            Some(code) => {
                let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
                let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
                Answer::Failed(format!("nvidia-smi ended with {code}: {first}"))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(listed: Option<usize>, devices: usize, allowed: Option<usize>, expected: usize) -> Verdict {
        let allowed = allowed.map(|n| ("CUDA_VISIBLE_DEVICES", n));
        Seen { listed, devices, allowed }.judge(Some(expected)).verdict
    }

    #[test]
    fn number_is_the_smallest_that_a_source_tells() {
        assert_eq!(count(Some(8), 8, None, 8), Verdict::Ok);
        assert_eq!(count(Some(7), 8, None, 8), Verdict::Bad);
        assert_eq!(count(Some(8), 8, Some(4), 8), Verdict::Bad);
        assert_eq!(count(Some(8), 8, Some(4), 4), Verdict::Ok);
        assert_eq!(count(Some(8), 8, None, 4), Verdict::Warn);
        assert_eq!(count(None, 2, None, 2), Verdict::Ok);
        assert_eq!(count(None, 0, Some(8), 8), Verdict::Warn);
        assert_eq!(count(None, 0, None, 1), Verdict::Bad);
        assert_eq!(count(None, 0, None, 0), Verdict::Ok);
    }

    #[test]
    fn variables_of_slurm_and_cuda_are_counted() {
        let by = |name: &'static str, value: &'static str| {
            allowed(&move |asked| (asked == name).then(|| value.to_owned())).map(|(_, num)| num)
        };
        assert_eq!(by("CUDA_VISIBLE_DEVICES", "0,1, GPU-ab,MIG-c"), Some(4));
        assert_eq!(by("CUDA_VISIBLE_DEVICES", "0,-1,2"), Some(1));
        assert_eq!(by("CUDA_VISIBLE_DEVICES", "NoDevFiles"), Some(0));
        assert_eq!(by("CUDA_VISIBLE_DEVICES", ""), Some(0));
        assert_eq!(by("SLURM_GPUS_ON_NODE", "8"), Some(8));
        assert_eq!(by("SLURM_GPUS_ON_NODE", "gpu:8"), None);
    }

    #[test]
    fn rows_of_nvidia_smi_are_read_with_all_their_ways_to_say_nothing() {
        let told = |text: &str, finding| {
            let check = findings("x", Answer::Text(text.to_owned()), "nothing", finding);
            (check.verdict == Verdict::Bad).then_some(check.got)
        };
        assert_eq!(
            told("0, 0\n1, 3\n2, [N/A]\n3, [Not Supported]\n\n", ecc_error),
            Some("GPU 1 has 3".into())
        );
        assert_eq!(told("0, 0\n", ecc_error), None);
        let rows =
            "GPU-eb03d17e-ded7, No, No\nGPU-fb03d17e-ded7, Yes, No\nGPU-a, 0, 1\nGPU-b, [N/A], [N/A]\n";
        assert_eq!(told(rows, remapping), Some("GPU-fb03d17e.. pending; GPU-a.. failed".into()));
        let actions = "0, None\n1, Reset\n2, [N/A]\n3, N/A\n4, [Unknown Error]\n";
        assert_eq!(told(actions, recovery_action), Some("GPU 1 wants Reset".into()));
        let old =
            Answer::Failed("nvidia-smi ended with 2: Field \"x\" is not a valid field to query.".into());
        assert_eq!(findings("x", old, "nothing", ecc_error).verdict, Verdict::Ok);
        let hung = Answer::Failed("nvidia-smi: no answer in 20 s".into());
        assert_eq!(findings("x", hung, "nothing", ecc_error).verdict, Verdict::Bad);
    }
}
