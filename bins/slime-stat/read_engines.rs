//! Reads what each replica said of itself every few seconds, long files by their evenly spaced parts.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use slime_config::RunDir;

/// Bytes read of one replica's file for curves.
const CURVE_BYTES: u64 = 8 << 20;
/// Places from which a longer file is read.
const NUM_PARTS: u64 = 64;
/// Bytes read of one replica's file for its newest state.
const TAIL_BYTES: u64 = 16 << 10;

/// One state of a replica; what a version does not tell is 0.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EngineState {
    /// Seconds since 1970.
    pub time: f64,
    /// Sequences that are generated now.
    pub num_running: f64,
    /// Sequences that wait for room.
    pub num_waiting: f64,
    /// Tokens generated each second.
    pub tokens_per_s: f64,
    /// Share of the KV cache that is taken.
    pub kv_used: f64,
    /// Share of the time the engine computed.
    pub busy: f64,
    /// Policy version it generates with.
    pub version: f64,
}

/// The states of one replica, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Engine {
    /// Its number, as text.
    pub replica: String,
    /// What it said.
    pub states: Vec<EngineState>,
}

/// All replicas with what they said over the whole run.
pub fn read_engines(run_dir: &RunDir) -> Vec<Engine> {
    read(run_dir, |file, len| if len <= CURVE_BYTES { vec![(0, len)] } else { parts(file, len) })
}

/// All replicas with what they said last.
pub fn read_newest(run_dir: &RunDir) -> Vec<Engine> {
    read(run_dir, |_, len| vec![(len.saturating_sub(TAIL_BYTES), len.min(TAIL_BYTES))])
}

/// Evenly spaced parts of a long file, as offset and length.
fn parts(_: &File, len: u64) -> Vec<(u64, u64)> {
    let size = CURVE_BYTES / NUM_PARTS;
    (0..NUM_PARTS).map(|part| ((len - size) * part / (NUM_PARTS - 1), size)).collect()
}

fn read(run_dir: &RunDir, wanted: impl Fn(&File, u64) -> Vec<(u64, u64)>) -> Vec<Engine> {
    let mut engines = Vec::new();
    for entry in fs::read_dir(run_dir.metrics()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(replica) = name.strip_prefix("engine-").and_then(|rest| rest.strip_suffix(".jsonl")) else {
            continue;
        };
        let states = read_states(&entry.path(), &wanted).unwrap_or_else(|error| {
            tracing::warn!("{}: left out: {error}", entry.path().display());
            Vec::new()
        });
        engines.push(Engine { replica: replica.to_owned(), states });
    }
    engines.sort_by_key(|engine| (engine.replica.parse::<u64>().unwrap_or(u64::MAX), engine.replica.clone()));
    engines
}

fn read_states(
    path: &Path,
    wanted: &impl Fn(&File, u64) -> Vec<(u64, u64)>,
) -> std::io::Result<Vec<EngineState>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut states = Vec::new();
    for (offset, size) in wanted(&file, len) {
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(size).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        // The first and the last line of a part may be cut, as may a line that is being written.
        states.extend(text.lines().filter_map(|line| serde_json::from_str::<EngineState>(line).ok()));
    }
    states.retain(|state| state.time > 0.0);
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_are_read_in_parts_and_torn_lines_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("metrics")).unwrap();
        let run_dir = RunDir::new(folder.path());
        let line = |time: u32| format!("{{\"time\":{time},\"tool\":\"replica.0\",\"num_running\":3}}\n");
        let short: String = (1..4).map(line).collect::<String>() + "{\"time\":4,";
        fs::write(run_dir.metrics().join("engine-10.jsonl"), short).unwrap();
        let long: String = (1..300_000).map(line).collect();
        fs::write(run_dir.metrics().join("engine-2.jsonl"), long).unwrap();
        let engines = read_engines(&run_dir);
        let names: Vec<&str> = engines.iter().map(|engine| engine.replica.as_str()).collect();
        assert_eq!(names, ["2", "10"], "in the order of their numbers");
        assert_eq!(engines[1].states.len(), 3);
        let states = &engines[0].states;
        assert!(states.len() < 200_000 && states[0].time < 2.0 && states.last().unwrap().time > 299_900.0);
        assert!(states.is_sorted_by(|a, b| a.time < b.time));
        let newest = read_newest(&run_dir);
        assert!(newest[0].states.len() < 1000 && newest[0].states.last() == states.last());
    }
}
