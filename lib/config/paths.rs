//! Every name in a run directory. Names order as numbers do, and most can be read back.

use std::path::{Path, PathBuf};

/// A run directory; the methods name what lies in it and touch nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
}

/// Digits of a step or version.
const STEP_DIGITS: usize = 6;
/// Digits of an epoch inside another name.
const EPOCH_DIGITS: usize = 3;

/// `000042`: a step, version or trainer epoch.
pub fn step_name(step: u64) -> String {
    format!("{step:0STEP_DIGITS$}")
}

/// `000042.e003`: a version or checkpoint of one trainer epoch.
pub fn version_name(version: u64, epoch: u64) -> String {
    format!("{version:0STEP_DIGITS$}.e{epoch:0EPOCH_DIGITS$}")
}

/// Reads a name of [`step_name`] back.
pub fn parse_step(name: &str) -> Option<u64> {
    let digits = name.len() >= STEP_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| digits)
}

/// Reads a name of [`version_name`] back, with or without `.json`.
pub fn parse_version(name: &str) -> Option<(u64, u64)> {
    let (version, epoch) = name.strip_suffix(".json").unwrap_or(name).split_once(".e")?;
    let digits = epoch.len() >= EPOCH_DIGITS && epoch.bytes().all(|byte| byte.is_ascii_digit());
    Some((parse_step(version)?, epoch.parse().ok().filter(|_| digits)?))
}

/// `<incarnation>.<seq>.arrow`: a sealed segment; `seq` orders the segments of one incarnation.
pub fn segment_name(incarnation: u64, seq: u64) -> String {
    format!("{incarnation:0EPOCH_DIGITS$}.{seq:0STEP_DIGITS$}.arrow")
}

/// `<incarnation>.<seq>.json`: what the step builder asked of a replica.
pub fn assignment_name(incarnation: u64, seq: u64) -> String {
    format!("{incarnation:0EPOCH_DIGITS$}.{seq:0STEP_DIGITS$}.json")
}

/// Reads (incarnation, seq) of a segment or assignment back; `None` for temporary and foreign names.
pub fn parse_sequence(name: &str) -> Option<(u64, u64)> {
    let stem = name.strip_suffix(".arrow").or_else(|| name.strip_suffix(".json"))?;
    let (incarnation, seq) = stem.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(incarnation) || !digits(seq) {
        return None;
    }
    Some((incarnation.parse().ok()?, seq.parse().ok()?))
}

/// `.tmp.<incarnation>.<seq>`: where a file is written before it gets its name, in the same folder.
pub fn temporary_name(incarnation: u64, seq: u64) -> String {
    format!(".tmp.{incarnation:0EPOCH_DIGITS$}.{seq:0STEP_DIGITS$}")
}

impl RunDir {
    /// Names below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The run directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The resolved configuration.
    pub fn run_toml(&self) -> PathBuf {
        self.root.join("run.toml")
    }

    /// Provenance: versions, hashes, hosts, Slurm ids.
    pub fn run_json(&self) -> PathBuf {
        self.root.join("run.json")
    }

    /// The folder of trainer epochs.
    pub fn epochs(&self) -> PathBuf {
        self.root.join("epoch")
    }

    /// One trainer epoch: `epoch/000003`.
    pub fn epoch(&self, epoch: u64) -> PathBuf {
        self.epochs().join(step_name(epoch))
    }

    /// The incarnations of one owner: `owner/replica.2`.
    pub fn owner(&self, tool: &str, index: u32) -> PathBuf {
        self.root.join("owner").join(format!("{tool}.{index}"))
    }

    /// One incarnation of an owner: `owner/replica.2/000005`.
    pub fn incarnation(&self, tool: &str, index: u32, incarnation: u64) -> PathBuf {
        self.owner(tool, index).join(step_name(incarnation))
    }

    /// The folder of publications.
    pub fn versions(&self) -> PathBuf {
        self.root.join("version")
    }

    /// The publication of a version: `version/000042.e003.json`.
    pub fn version(&self, version: u64, epoch: u64) -> PathBuf {
        self.versions().join(format!("{}.json", version_name(version, epoch)))
    }

    /// The weight directory of a version: `weights/000042.e003`.
    pub fn weights(&self, version: u64, epoch: u64) -> PathBuf {
        self.root.join("weights").join(version_name(version, epoch))
    }

    /// All steps' rollouts.
    pub fn rollouts(&self) -> PathBuf {
        self.root.join("rollout")
    }

    /// One step's rollout: `rollout/000042`.
    pub fn rollout(&self, step: u64) -> PathBuf {
        self.rollouts().join(step_name(step))
    }

    /// The sealed segments of one replica: `rollout/000042/replica-1`.
    pub fn segments(&self, step: u64, replica: u32) -> PathBuf {
        self.rollout(step).join(format!("replica-{replica}"))
    }

    /// What was asked of one replica: `rollout/000042/assign/replica-1`.
    pub fn assignments(&self, step: u64, replica: u32) -> PathBuf {
        self.rollout(step).join("assign").join(format!("replica-{replica}"))
    }

    /// The commit of a step: `rollout/000042/MANIFEST.json`.
    pub fn manifest(&self, step: u64) -> PathBuf {
        self.rollout(step).join("MANIFEST.json")
    }

    /// What one writer computed about a step's samples: `column/reward/000042/worker-0`.
    pub fn column(&self, name: &str, step: u64, writer: &str) -> PathBuf {
        self.root.join("column").join(name).join(step_name(step)).join(writer)
    }

    /// The evaluation of a version: `eval/000040.e003`.
    pub fn evaluation(&self, version: u64, epoch: u64) -> PathBuf {
        self.root.join("eval").join(version_name(version, epoch))
    }

    /// One set of it: `eval/000040.e003/held_out`.
    pub fn evaluation_set(&self, version: u64, epoch: u64, set: &str) -> PathBuf {
        self.evaluation(version, epoch).join(set)
    }

    /// All checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// The trainer's state at a version: `checkpoint/000040.e003`.
    pub fn checkpoint(&self, version: u64, epoch: u64) -> PathBuf {
        self.checkpoints().join(version_name(version, epoch))
    }

    /// One rank's file of it: `checkpoint/000040.e003/rank_00001.h5`.
    pub fn checkpoint_rank(&self, version: u64, epoch: u64, rank: u32) -> PathBuf {
        self.checkpoint(version, epoch).join(format!("rank_{rank:05}.h5"))
    }

    /// The rendezvous of a device transport: `sync/session-7`.
    pub fn sync_session(&self, session: u64) -> PathBuf {
        self.root.join("sync").join(format!("session-{session}"))
    }

    /// The folder of metric files.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics")
    }

    /// One tool's metrics: `metrics/train.jsonl`, an object a line with `step`, `tool` and numbers.
    pub fn metrics_file(&self, tool: &str) -> PathBuf {
        self.metrics().join(format!("{tool}.jsonl"))
    }

    /// A wish or state of the whole run: `control/{stop,save,pause,done}`.
    pub fn control(&self, name: &str) -> PathBuf {
        self.root.join("control").join(name)
    }

    /// One owner's heartbeat: `heartbeat/replica.2`.
    pub fn heartbeat(&self, tool: &str, index: u32) -> PathBuf {
        self.root.join("heartbeat").join(format!("{tool}.{index}"))
    }

    /// One attempt of the job: `attempt-0`.
    pub fn attempt(&self, restart: u32) -> PathBuf {
        self.root.join(format!("attempt-{restart}"))
    }

    /// How an attempt ended.
    pub fn outcome(&self, restart: u32) -> PathBuf {
        self.attempt(restart).join("outcome")
    }

    /// The exit code a failing rank leaves: `attempt-0/failed.slime-train.3`.
    pub fn failed(&self, restart: u32, tool: &str, rank: u32) -> PathBuf {
        self.attempt(restart).join(format!("failed.{tool}.{rank}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_contract() {
        let run = RunDir::new("r");
        for (path, name) in [
            (run.run_toml(), "r/run.toml"),
            (run.run_json(), "r/run.json"),
            (run.epoch(3), "r/epoch/000003"),
            (run.incarnation("replica", 2, 5), "r/owner/replica.2/000005"),
            (run.version(42, 3), "r/version/000042.e003.json"),
            (run.weights(42, 3), "r/weights/000042.e003"),
            (run.segments(42, 1).join(segment_name(2, 7)), "r/rollout/000042/replica-1/002.000007.arrow"),
            (
                run.assignments(42, 1).join(assignment_name(2, 7)),
                "r/rollout/000042/assign/replica-1/002.000007.json",
            ),
            (run.manifest(42), "r/rollout/000042/MANIFEST.json"),
            (run.column("reward", 42, "worker-0"), "r/column/reward/000042/worker-0"),
            (run.evaluation_set(40, 3, "held_out"), "r/eval/000040.e003/held_out"),
            (run.checkpoint_rank(40, 3, 1), "r/checkpoint/000040.e003/rank_00001.h5"),
            (run.sync_session(7), "r/sync/session-7"),
            (run.metrics_file("train"), "r/metrics/train.jsonl"),
            (run.control("stop"), "r/control/stop"),
            (run.heartbeat("builder", 0), "r/heartbeat/builder.0"),
            (run.outcome(0), "r/attempt-0/outcome"),
            (run.failed(0, "slime-train", 3), "r/attempt-0/failed.slime-train.3"),
        ] {
            assert_eq!(path, Path::new(name));
        }
    }

    #[test]
    fn names_read_back_and_foreign_names_do_not() {
        assert_eq!(parse_step(&step_name(42)), Some(42));
        assert_eq!(parse_step(&step_name(12_345_678)), Some(12_345_678));
        assert_eq!(parse_version(&version_name(42, 3)), Some((42, 3)));
        assert_eq!(parse_version("000042.e003.json"), Some((42, 3)));
        assert_eq!(parse_sequence(&segment_name(2, 7)), Some((2, 7)));
        for foreign in ["", "42", ".tmp.002.000007", "MANIFEST.json", "+00042", "000042.e3", "a.000001.arrow"]
        {
            assert_eq!(parse_step(foreign), None, "{foreign}");
            assert_eq!(parse_version(foreign), None, "{foreign}");
            assert_eq!(parse_sequence(foreign), None, "{foreign}");
        }
        assert_eq!(parse_sequence(&temporary_name(2, 7)), None);
    }

    #[test]
    fn names_order_as_numbers() {
        assert!(version_name(9, 12) < version_name(10, 1));
        assert!(segment_name(1, 99) < segment_name(2, 0));
        assert!(step_name(99) < step_name(100));
    }
}
