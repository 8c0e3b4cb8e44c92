//! Every name in a run directory: relative ones with `/`, as stores take them, and [`RunDir`], which joins them to a
//! place. Names order as numbers do, and most can be read back.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Digits of a step, version, incarnation or sequence number.
const DIGITS: usize = 6;
/// Digits of an epoch inside another name.
const EPOCH_DIGITS: usize = 3;

/// Folder of the trainer's epochs.
pub const EPOCHS: &str = "epoch";
/// Folder of the publications.
pub const VERSIONS: &str = "version";
/// Folder of the weights on disk.
pub const WEIGHTS: &str = "weights";
/// Folder of the steps.
pub const ROLLOUT: &str = "rollout";
/// The file that commits a step, in its folder.
pub const MANIFEST: &str = "MANIFEST.json";
/// How the segments of a replica begin, in the folder of their step.
const SEGMENT: &str = "replica-";
const PARTS: &str = "parts-";
/// How the assignments of a replica begin, in the folder of their step.
const ASSIGNMENT: &str = "assign-";
/// The first step whose folder holds more than its manifest; a hint that spares readers the others.
pub const FIRST_STEP: &str = "rollout/first_step";
/// Folder of what is computed later about samples.
pub const COLUMNS: &str = "column";
/// Folder of the evaluations.
pub const EVALUATIONS: &str = "eval";
/// Folder of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoint";
/// Folder of the incarnations of all owners.
pub const OWNERS: &str = "owner";
/// Folder of the heartbeats.
pub const HEARTBEATS: &str = "heartbeat";
/// Folder of the metric files.
pub const METRICS: &str = "metrics";
/// Folder of the packed files and their manifests.
pub const ARCHIVE: &str = "archive";
/// The file that makes a folder a checkpoint.
pub const COMPLETE: &str = "COMPLETE";
/// Folder of what people, and the end of the run, say to all tools.
pub const CONTROL: &str = "control";
/// Folder of what engines say of the versions they take.
pub const SYNC: &str = "sync";
/// The whole run is over.
pub const DONE: &str = "control/done";
/// Everybody shall drain.
pub const STOP: &str = "control/stop";
/// The trainer shall take a checkpoint; it removes the file when there is one.
pub const SAVE: &str = "control/save";
/// No prompt is drawn and no step is trained while it is there.
pub const PAUSE: &str = "control/pause";
/// Names the folder of this start of the job for the tools that it starts, set by the job script.
pub const ATTEMPT_VARIABLE: &str = "SLIME_ATTEMPT_DIR";
/// Owner name of the step builder.
pub const BUILDER: &str = "builder.0";
/// Owner name of the trainer, whose incarnations are the epochs.
pub const TRAINER: &str = "trainer";

/// A physical version: its number and the trainer epoch that published it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Physical {
    /// Policy after this many training steps.
    pub version: u64,
    /// Epoch that published it.
    pub epoch: u64,
}

/// `000042.e003`
impl std::fmt::Display for Physical {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:0DIGITS$}.e{:0EPOCH_DIGITS$}", self.version, self.epoch)
    }
}

/// `000042`: a step, version, incarnation or trainer epoch.
pub fn number(number: u64) -> String {
    format!("{number:0DIGITS$}")
}

/// One trainer epoch: `epoch/000003`.
pub fn epoch(epoch: u64) -> String {
    format!("{EPOCHS}/{epoch:0DIGITS$}")
}

/// Owner name of a replica: `replica.2`.
pub fn replica(index: u32) -> String {
    format!("replica.{index}")
}

/// Owner name of the worker that computes a column: `reward.0`.
pub fn worker(column: &str, index: u32) -> String {
    format!("{column}.{index}")
}

/// One rank of an owner that has many: `trainer.3`.
pub fn rank(owner: &str, rank: usize) -> String {
    format!("{owner}.{rank}")
}

/// The incarnations of one owner: `owner/replica.2`.
pub fn owner(owner: &str) -> String {
    format!("{OWNERS}/{owner}")
}

/// One incarnation of an owner: `owner/replica.2/000005`.
pub fn incarnation(owner: &str, incarnation: u64) -> String {
    format!("{OWNERS}/{owner}/{incarnation:0DIGITS$}")
}

/// One beat of an owner, an empty file whose name is all that it says: `heartbeat/replica.2.000005.000123.v000042`, or
/// without the version of an owner that has none.
pub fn heartbeat(owner: &str, incarnation: u64, beat: u64, version: Option<u64>) -> String {
    let version = version.map(|version| format!(".v{version:0DIGITS$}")).unwrap_or_default();
    format!("{HEARTBEATS}/{owner}.{incarnation:0DIGITS$}.{beat:0DIGITS$}{version}")
}

/// Which version an owner's engine took last, a hint: `sync/replica.2.json`.
pub fn acknowledgement(owner: &str) -> String {
    format!("{SYNC}/{owner}.json")
}

/// The publication of a version: `version/000042.e003.json`.
pub fn version(place: Physical) -> String {
    format!("{VERSIONS}/{place}.json")
}

/// The weight directory of a version: `weights/000042.e003`.
pub fn weights(place: Physical) -> String {
    format!("{WEIGHTS}/{place}")
}

/// The trainer's state at a version: `checkpoint/000040.e003`.
pub fn checkpoint(place: Physical) -> String {
    format!("{CHECKPOINTS}/{place}")
}

/// What makes it a checkpoint: `checkpoint/000040.e003/COMPLETE`.
pub fn complete(place: Physical) -> String {
    format!("{CHECKPOINTS}/{place}/{COMPLETE}")
}

/// One step's rollout: `rollout/000042`.
pub fn step(step: u64) -> String {
    format!("{ROLLOUT}/{step:0DIGITS$}")
}

/// The commit of a step: `rollout/000042/MANIFEST.json`.
pub fn manifest(step: u64) -> String {
    format!("{ROLLOUT}/{step:0DIGITS$}/{MANIFEST}")
}

/// A sealed segment of samples: `rollout/000042/replica-1.000002.000007.arrow`; `seq` orders those of one incarnation.
pub fn segment(step: u64, replica: u32, incarnation: u64, seq: u64) -> String {
    format!("{ROLLOUT}/{step:0DIGITS$}/{SEGMENT}{replica}.{incarnation:0DIGITS$}.{seq:0DIGITS$}.arrow")
}

/// Unfinished samples that a drained replica left, as a segment: `rollout/000042/parts-1.000002.000008.arrow`.
pub fn parts(step: u64, replica: u32, incarnation: u64, seq: u64) -> String {
    format!("{ROLLOUT}/{step:0DIGITS$}/{PARTS}{replica}.{incarnation:0DIGITS$}.{seq:0DIGITS$}.arrow")
}

/// What the step builder's incarnation asked of a replica: `rollout/000042/assign-1.000002.000007.json`.
pub fn assignment(step: u64, replica: u32, incarnation: u64, seq: u64) -> String {
    format!("{ROLLOUT}/{step:0DIGITS$}/{ASSIGNMENT}{replica}.{incarnation:0DIGITS$}.{seq:0DIGITS$}.json")
}

/// What was computed about a step's samples: `column/reward/000042`.
pub fn column(name: &str, step: u64) -> String {
    format!("{COLUMNS}/{name}/{step:0DIGITS$}")
}

/// A column file of an incarnation of a worker: `column/reward/000042/0.000003.000007.arrow`.
pub fn column_file(name: &str, step: u64, worker: u32, incarnation: u64, seq: u64) -> String {
    format!("{}/{worker}.{incarnation:0DIGITS$}.{seq:0DIGITS$}.arrow", column(name, step))
}

/// The evaluation of a version: `eval/000040.e003`.
pub fn evaluation(place: Physical) -> String {
    format!("{EVALUATIONS}/{place}")
}

/// A file of one evaluation set, its samples or what was computed about them:
/// `eval/000040.e003/held_out/{samples,reward}.arrow`.
pub fn evaluation_file(place: Physical, set: &str, name: &str) -> String {
    format!("{EVALUATIONS}/{place}/{set}/{name}.arrow")
}

/// All sets of an evaluation are written: `eval/000040.e003/DONE`.
pub fn evaluation_done(place: Physical) -> String {
    format!("{EVALUATIONS}/{place}/DONE")
}

/// One tool's metrics: `metrics/train.jsonl`, an object a line with `step`, `tool` and numbers.
pub fn metrics_file(tool: &str) -> String {
    format!("{METRICS}/{tool}.jsonl")
}

/// The samples whose part of a loss was not a number: an object a line with `step`, `what` and `samples`.
pub fn not_finite() -> String {
    metrics_file("not_finite")
}

/// The tool name of an engine's metrics: `engine-2`.
pub fn engine_metrics(replica: u32) -> String {
    format!("engine-{replica}")
}

/// One tool's numbers for Prometheus: `metrics/train.prom`.
pub fn prometheus_file(tool: &str) -> String {
    format!("{METRICS}/{tool}.prom")
}

/// The `TensorBoard` events of one tool: `tensorboard/train`.
pub fn tensorboard(tool: &str) -> String {
    format!("tensorboard/{tool}")
}

/// The spans of one process: `trace/trainer.0.000003.json`.
pub fn trace_file(role: &str, incarnation: u64) -> String {
    format!("trace/{role}.{incarnation:0DIGITS$}.json")
}

/// What one rank is doing, in the folder of an attempt: `rank/trainer.3.node7.4242.json`.
pub fn rank_note(role: &str, host: &str, pid: u32) -> String {
    format!("rank/{role}.{host}.{pid}.json")
}

/// Why one rank failed, in the folder of an attempt: `failed.trainer.3`.
pub fn rank_failure(role: &str) -> String {
    format!("failed.{role}")
}

/// Where one rank hung, in the folder of an attempt: `log/trainer.3.stack`.
pub fn rank_stack(role: &str) -> String {
    format!("log/{role}.stack")
}

/// Where a writer writes a file before it gets its name, in the same folder: `.tmp.<writer>.<n>`.
pub fn temporary_name(writer: &str, n: u64) -> String {
    format!("{}{n}", temporary_prefix(writer))
}

/// How all temporary names of a writer begin.
pub fn temporary_prefix(writer: &str) -> String {
    format!(".tmp.{writer}.")
}

/// The note beside a broken file, which nobody reads any more: `<file>.bad`.
pub fn quarantine(file: &str) -> String {
    format!("{file}.bad")
}

/// The file a name of [`quarantine`] is about; none for other names.
pub fn parse_quarantine(name: &str) -> Option<&str> {
    name.strip_suffix(".bad")
}

/// Reads a name of [`number`] back.
pub fn parse_number(name: &str) -> Option<u64> {
    if name.len() < DIGITS { None } else { parse_digits(name) }
}

/// Reads `000042.e003` back, with or without `.json`.
pub fn parse_physical(name: &str) -> Option<Physical> {
    let (version, epoch) = name.strip_suffix(".json").unwrap_or(name).split_once(".e")?;
    let epoch = parse_digits(epoch).filter(|_| epoch.len() >= EPOCH_DIGITS)?;
    Some(Physical { version: parse_number(version)?, epoch })
}

/// A file that one incarnation of an owner wrote, by the number of the owner (for an assignment, of the replica that is
/// asked).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbered {
    /// Number of the replica or worker.
    pub index: u32,
    /// Incarnation of the writer.
    pub incarnation: u64,
    /// Order among the writer's files.
    pub seq: u64,
}

/// Reads the name of a segment back; `None` for all others.
pub fn parse_segment(name: &str) -> Option<Numbered> {
    parse_numbered(name.strip_prefix(SEGMENT)?.strip_suffix(".arrow")?)
}

/// Reads the name of unfinished samples back; `None` for all others.
pub fn parse_parts(name: &str) -> Option<Numbered> {
    parse_numbered(name.strip_prefix(PARTS)?.strip_suffix(".arrow")?)
}

/// Reads the name of an assignment back; `None` for all others.
pub fn parse_assignment(name: &str) -> Option<Numbered> {
    parse_numbered(name.strip_prefix(ASSIGNMENT)?.strip_suffix(".json")?)
}

/// Reads the name of a column file back; `None` for all others.
pub fn parse_column_file(name: &str) -> Option<Numbered> {
    parse_numbered(name.strip_suffix(".arrow")?)
}

fn parse_numbered(stem: &str) -> Option<Numbered> {
    let mut parts = stem.splitn(3, '.').map(parse_digits);
    let (index, incarnation, seq) = (parts.next()??, parts.next()??, parts.next()??);
    Some(Numbered { index: index.try_into().ok()?, incarnation, seq })
}

/// Reads owner, incarnation, beat and version of a heartbeat's name back.
pub fn parse_heartbeat(name: &str) -> Option<(&str, u64, u64, Option<u64>)> {
    let (rest, version) = match name.rsplit_once(".v") {
        Some((rest, version)) => (rest, Some(parse_digits(version)?)),
        None => (name, None),
    };
    let (rest, beat) = rest.rsplit_once('.')?;
    let (owner, incarnation) = rest.rsplit_once('.')?;
    Some((owner, parse_number(incarnation)?, parse_number(beat)?, version))
}

/// Reads `attempt-2` back.
pub fn parse_attempt(name: &str) -> Option<u32> {
    parse_digits(name.strip_prefix("attempt-")?)?.try_into().ok()
}

fn parse_digits(text: &str) -> Option<u64> {
    // `parse` alone would take a sign.
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A run directory; the methods name what lies in it and touch nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
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

    /// What a relative name of this module stands for.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// The resolved configuration.
    pub fn run_toml(&self) -> PathBuf {
        self.join("run.toml")
    }

    /// The folder of metric files.
    pub fn metrics(&self) -> PathBuf {
        self.join(METRICS)
    }

    /// One tool's metrics.
    pub fn metrics_file(&self, tool: &str) -> PathBuf {
        self.join(metrics_file(tool))
    }

    /// A wish or state of the whole run: `control/{stop,save,pause,done}`.
    pub fn control(&self, name: &str) -> PathBuf {
        self.join(CONTROL).join(name)
    }

    /// How an attempt of the job ended: `attempt-0/outcome`.
    pub fn outcome(&self, restart: u32) -> PathBuf {
        self.join(format!("attempt-{restart}/outcome"))
    }

    /// The folder of an attempt of the job: `attempt-0`.
    pub fn attempt(&self, restart: u32) -> PathBuf {
        self.join(format!("attempt-{restart}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Physical = Physical { version: 42, epoch: 3 };

    #[test]
    fn names_are_those_of_the_contract() {
        for (got, name) in [
            (epoch(3), "epoch/000003"),
            (incarnation(&replica(2), 5), "owner/replica.2/000005"),
            (heartbeat(BUILDER, 5, 123, None), "heartbeat/builder.0.000005.000123"),
            (heartbeat(&replica(2), 5, 123, Some(42)), "heartbeat/replica.2.000005.000123.v000042"),
            (version(PLACE), "version/000042.e003.json"),
            (weights(PLACE), "weights/000042.e003"),
            (complete(PLACE), "checkpoint/000042.e003/COMPLETE"),
            (manifest(42), "rollout/000042/MANIFEST.json"),
            (segment(42, 1, 2, 7), "rollout/000042/replica-1.000002.000007.arrow"),
            (assignment(42, 1, 2, 7), "rollout/000042/assign-1.000002.000007.json"),
            (column_file("reward", 42, 0, 3, 7), "column/reward/000042/0.000003.000007.arrow"),
            (evaluation_file(PLACE, "held_out", "samples"), "eval/000042.e003/held_out/samples.arrow"),
            (evaluation_done(PLACE), "eval/000042.e003/DONE"),
            (metrics_file(&engine_metrics(2)), "metrics/engine-2.jsonl"),
            (prometheus_file("train"), "metrics/train.prom"),
            (tensorboard("train"), "tensorboard/train"),
            (trace_file(&rank(TRAINER, 0), 3), "trace/trainer.0.000003.json"),
        ] {
            assert_eq!(got, name);
        }
        let run = RunDir::new("r");
        for (path, name) in [
            (run.run_toml(), "r/run.toml"),
            (run.join(version(PLACE)), "r/version/000042.e003.json"),
            (run.metrics_file("train"), "r/metrics/train.jsonl"),
            (run.control("stop"), "r/control/stop"),
            (run.join(STOP), "r/control/stop"),
            (run.control("done"), &format!("r/{DONE}")),
            (run.outcome(0), "r/attempt-0/outcome"),
            (run.attempt(12), "r/attempt-12"),
        ] {
            assert_eq!(path, Path::new(name));
        }
    }

    #[test]
    fn names_read_back_and_foreign_names_do_not() {
        assert_eq!(parse_number(&number(42)), Some(42));
        assert_eq!(parse_number(&number(12_345_678)), Some(12_345_678));
        assert_eq!(parse_physical(&PLACE.to_string()), Some(PLACE));
        assert_eq!(parse_physical("000042.e003.json"), Some(PLACE));
        let numbered = Some(Numbered { index: 1, incarnation: 2, seq: 7 });
        let base = |path: String| path.rsplit('/').next().map(str::to_owned).unwrap_or_default();
        let [segment, assignment] = [segment(42, 1, 2, 7), assignment(42, 1, 2, 7)].map(base);
        let column = base(column_file("reward", 42, 1, 2, 7));
        assert_eq!(parse_segment(&segment), numbered);
        assert_eq!(parse_assignment(&assignment), numbered);
        assert_eq!(parse_column_file(&column), numbered);
        for other in [&assignment, &column, &quarantine(&segment)] {
            assert_eq!(parse_segment(other), None, "{other}");
        }
        for other in [&segment, &column] {
            assert_eq!(parse_assignment(other), None, "{other}");
        }
        for other in [&segment, &assignment, &quarantine(&column)] {
            assert_eq!(parse_column_file(other), None, "{other}");
        }
        for version in [None, Some(42)] {
            let name = base(heartbeat("a.b.3", 5, 123, version));
            assert_eq!(parse_heartbeat(&name), Some(("a.b.3", 5, 123, version)));
        }
        assert_eq!(parse_quarantine(&quarantine("a.arrow")), Some("a.arrow"));
        assert_eq!(parse_attempt("attempt-12"), Some(12));
        assert_eq!((parse_attempt("attempt-+1"), parse_attempt("attempt-")), (None, None));
        let temporary = temporary_name("host.1", 7);
        for foreign in ["", "42", &temporary, "MANIFEST.json", "+00042", "000042.e3", "a.000001.arrow"] {
            assert_eq!(parse_number(foreign), None, "{foreign}");
            assert_eq!(parse_physical(foreign), None, "{foreign}");
            assert_eq!(parse_segment(foreign), None, "{foreign}");
            assert_eq!(parse_column_file(foreign), None, "{foreign}");
            assert_eq!(parse_heartbeat(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn names_order_as_numbers() {
        assert!(version(Physical { version: 9, epoch: 12 }) < version(Physical { version: 10, epoch: 1 }));
        assert!(segment(0, 1, 1, 99) < segment(0, 1, 2, 0));
        assert!(number(99) < number(100));
    }
}
