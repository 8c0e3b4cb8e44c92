//! `slime-stat archive`: packs what no kept checkpoint needs any more, and brings it back.

use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use clap::Args as ClapArgs;
use slime_archive::{Phase, Selection, ended_logs, pack, restore, step_files};
use slime_cli::{Failure, exit};
use slime_config::paths::{self, Physical};
use slime_exchange::{FsStore, Lineage, Owner, Store, refuse_second};
use slime_record::Manifest;

/// The owner name under which only one process at a time packs a run.
const OWNER: &str = "archive.0";
/// How often owners beat, which an archive does not: another host's is waited for this long, three times.
const BEAT: Duration = Duration::from_secs(1);

/// `slime-stat archive`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Reads:   RUN/rollout, RUN/column, RUN/checkpoint, RUN/attempt-*/log
Writes:  RUN/archive/<first>-<last>.zst (frames of zstd with a seek table; unzstd unpacks the whole)
         and its manifest <first>-<last>.json: members with size, xxh3 and frames; then removes
         the originals. A kill at any moment loses nothing, and the next call goes on
Packs:   segments, assignments and columns of committed steps older than the oldest kept checkpoint
         needs, and logs of ended attempts. Manifests, metrics and evaluations stay. Readers
         (slime-convert inspect) take a packed file as if it were in its place

Example:
  slime-stat archive runs/quickstart
  slime-stat archive runs/quickstart --restore rollout/000003 column/reward/000003

Exit codes: 0 ok, 64 usage, 65 corrupt, 66 no such run or member, 73 a wanted step is still
            needed or another process packs, 74 I/O, 77 permission")]
pub struct Archive {
    /// A run directory
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Only the steps from FIRST to LAST; the default is all that nothing needs any more
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_steps, conflicts_with = "restore")]
    pub steps: Option<(u64, u64)>,
    /// Brings packed files or folders back to their places; without a name all of them
    #[arg(long, value_name = "NAME", num_args = 0..)]
    pub restore: Option<Vec<String>>,
}

fn parse_steps(text: &str) -> Result<(u64, u64), String> {
    let bounds =
        text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    bounds
        .filter(|(first, last)| first <= last)
        .ok_or_else(|| format!("expected steps such as 0-11, got {text}"))
}

/// Packs or restores, and says what was done.
pub fn archive(args: &Archive) -> Result<(), Failure> {
    let run = Path::new(&args.run);
    if !run.join(paths::ROLLOUT).is_dir() {
        return Err(Failure::new(
            exit::NO_INPUT,
            format!("{}: not a run directory: it has no rollout/", args.run),
        ));
    }
    let text = match &args.restore {
        Some(names) => {
            let done = restore(run, names).map_err(|error| failure(&error))?;
            let there =
                if done.num_there > 0 { format!(", {} were there", done.num_there) } else { String::new() };
            format!("restored {} files, {} bytes{there}\n", done.num_files, done.num_bytes)
        }
        None => pack_run(run, args.steps)?,
    };
    stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::io("stdout", &error))
}

fn failure(error: &slime_archive::Error) -> Failure {
    Failure::from_error(error.exit_code(), error)
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
fn of_store(error: slime_exchange::Error) -> Failure {
    Failure::from_error(error.exit_code(), &error)
}

fn pack_run(run: &Path, wanted: Option<(u64, u64)>) -> Result<String, Failure> {
    let mut store = FsStore::open(run).map_err(of_store)?;
    refuse_second(&mut store, OWNER, BEAT).map_err(of_store)?;
    Owner::claim(&mut store, OWNER).map_err(of_store)?;
    let needed = needed_from(&mut store)?;
    if let Some((first, last)) = wanted {
        check_wanted(first, last, needed)?;
    }
    let mut selection = Selection::default();
    let mut steps = Vec::new();
    for step in committed(&mut store)? {
        let is_wanted = wanted.is_none_or(|(first, last)| (first..=last).contains(&step));
        if !is_wanted || needed.is_none_or(|needed| step >= needed.step) {
            continue;
        }
        let names = step_files(run, step).map_err(|error| failure(&error))?;
        if !names.is_empty() {
            steps.push(step);
            selection.names.extend(names);
        }
    }
    selection.names.extend(ended_logs(run).map_err(|error| failure(&error))?);
    selection.stem = match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => format!("{}-{}", paths::number(*first), paths::number(*last)),
        _ => "logs".to_owned(),
    };
    let done = pack(run, &selection, &mut |phase| {
        if phase != Phase::Removed {
            tracing::debug!("{}: {phase:?}", selection.stem);
        }
    });
    let done = done.map_err(|error| failure(&error))?;
    let kept = match needed {
        Some(Needed { step, checkpoint }) => {
            format!("steps from {step} on stay: checkpoint {checkpoint} needs them")
        }
        None => "all steps stay: there is no checkpoint".to_owned(),
    };
    Ok(match done.archive {
        Some(name) => format!(
            "packed {} files of {} steps, {} bytes, into {}/{name}, {} bytes; {kept}\n",
            done.num_packed,
            steps.len(),
            done.num_bytes,
            paths::ARCHIVE,
            done.packed_bytes
        ),
        None if done.num_removed > 0 => {
            format!("removed {} files that were packed; {kept}\n", done.num_removed)
        }
        None => format!("nothing to pack; {kept}\n"),
    })
}

/// Refuses steps that are asked for and needed.
fn check_wanted(first: u64, last: u64, needed: Option<Needed>) -> Result<(), Failure> {
    let Some(Needed { step, checkpoint }) = needed else {
        return Err(Failure::new(
            exit::CANNOT_CREATE,
            "every step is still needed: the run has no checkpoint",
        ));
    };
    if last < step {
        return Ok(());
    }
    let message =
        format!("step {} is still needed: the run may go on from checkpoint {checkpoint}", step.max(first));
    Err(Failure::new(exit::CANNOT_CREATE, message).with_hint(format!("steps before {step} can be packed")))
}

/// The first step that is needed, and the oldest kept checkpoint, which needs it.
#[derive(Debug, Clone, Copy)]
struct Needed {
    step: u64,
    checkpoint: Physical,
}

/// By the rule of the trainer's pruning: nothing at or after the oldest step that a manifest from the oldest kept
/// checkpoint on (and the one before, whose carried groups are trained later) names. None without a checkpoint.
fn needed_from(store: &mut FsStore) -> Result<Option<Needed>, Failure> {
    let mut lineage = Lineage::default();
    lineage.refresh(store).map_err(of_store)?;
    let Some(checkpoint) = lineage.checkpoints(store).map_err(of_store)?.first().copied() else {
        return Ok(None);
    };
    let mut needed = Needed { step: checkpoint.version, checkpoint };
    for step in committed(store)?.into_iter().filter(|step| step + 1 >= checkpoint.version) {
        let path = paths::manifest(step);
        let Some(bytes) = store.read(&path).map_err(of_store)? else { continue };
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|error| Failure::data(format!("{path}: {error}")))?;
        needed.step = needed.step.min(manifest.oldest_step());
    }
    Ok(Some(needed))
}

/// The steps that have a manifest, in order.
fn committed(store: &mut FsStore) -> Result<Vec<u64>, Failure> {
    let names = store.list(paths::ROLLOUT).map_err(of_store)?;
    let mut steps = Vec::new();
    for step in names.iter().filter_map(|name| paths::parse_number(name)) {
        if store.exists(&paths::manifest(step)).map_err(of_store)? {
            steps.push(step);
        }
    }
    Ok(steps)
}
