//! Reads the spans of every tool's trace file, also of one that is still being written, and of long files the end.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Map, Value};
use slime_config::RunDir;

/// Folder of the trace files in a run directory.
pub const TRACES: &str = "trace";

/// One span of a tool, as Chrome's trace format has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Span {
    /// What was done.
    pub name: String,
    /// Start in microseconds since 1970.
    pub start_us: f64,
    /// Length in microseconds.
    pub dur_us: f64,
    /// The step, where it is told.
    pub step: Option<u64>,
    /// The thread's number.
    pub tid: u64,
}

/// The trace of one tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The tool, such as `trainer.0`, from the file's name.
    pub role: String,
    /// Which start of it.
    pub incarnation: String,
    /// Its spans.
    pub spans: Vec<Span>,
    /// Whether the beginning of the file was left out for its length.
    pub is_cut: bool,
}

/// The traces of a run, by role and incarnation, of each file at most the last `max_bytes`.
pub fn read_traces(run_dir: &RunDir, max_bytes: u64) -> Vec<Trace> {
    let mut traces: Vec<Trace> = trace_files(run_dir)
        .into_iter()
        .filter_map(|(role, incarnation, path)| {
            let (events, is_cut) = read_events(&path, max_bytes)
                .inspect_err(|error| tracing::warn!("{}: left out: {error}", path.display()))
                .ok()?;
            let spans = events.iter().filter_map(span).collect();
            Some(Trace { role, incarnation, spans, is_cut })
        })
        .collect();
    traces.sort_by(|a, b| (&a.role, &a.incarnation).cmp(&(&b.role, &b.incarnation)));
    traces
}

/// Role, incarnation and path of every `trace/<role>.<incarnation>.json`.
pub fn trace_files(run_dir: &RunDir) -> Vec<(String, String, std::path::PathBuf)> {
    let entries = fs::read_dir(run_dir.join(TRACES)).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let stem = name.strip_suffix(".json").filter(|stem| !stem.starts_with('.'))?;
            let (role, incarnation) = stem.rsplit_once('.').unwrap_or((stem, ""));
            Some((role.to_owned(), incarnation.to_owned(), entry.path()))
        })
        .collect();
    files.sort();
    files
}

/// The events of a trace file: an array, whole or without its end, one event a line or not.
///
/// # Errors
/// The file cannot be read.
pub fn read_events(path: &Path, max_bytes: u64) -> std::io::Result<(Vec<Map<String, Value>>, bool)> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let is_cut = len > max_bytes;
    let mut bytes = Vec::new();
    if is_cut {
        file.seek(SeekFrom::Start(len - max_bytes))?;
    }
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    if !is_cut && let Ok(events) = serde_json::from_str(&text) {
        return Ok((events, false));
    }
    // A cut first or torn last line is no event.
    let event = |line: &str| {
        serde_json::from_str(line.trim().trim_start_matches('[').trim_end_matches([',', ']']).trim()).ok()
    };
    Ok((text.lines().filter_map(event).collect(), is_cut))
}

fn span(event: &Map<String, Value>) -> Option<Span> {
    let number = |key: &str| event.get(key).and_then(Value::as_f64);
    if event.get("ph")?.as_str()? != "X" {
        return None;
    }
    Some(Span {
        name: event.get("name")?.as_str()?.to_owned(),
        start_us: number("ts")?,
        dur_us: number("dur").unwrap_or(0.0),
        step: event.get("args").and_then(|args| args.get("step")).and_then(Value::as_u64),
        tid: event.get("tid").and_then(Value::as_u64).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_open_and_torn_files_give_their_whole_events() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        fs::create_dir(run_dir.join(TRACES)).unwrap();
        let event = |ts: u32| {
            format!(
                "{{\"ph\":\"X\",\"name\":\"train\",\"ts\":{ts},\"dur\":5,\"tid\":1,\"args\":{{\"step\":3}}}}"
            )
        };
        let write = |name: &str, text: String| fs::write(run_dir.join(TRACES).join(name), text).unwrap();
        write("trainer.0.000001.json", format!("[{},\n{}]\n", event(1), event(2)));
        write("replica.0.000001.json", format!("[\n{},\n{},\n{{\"ph\":\"X\",\"na", event(1), event(2)));
        write("replica.0.000002.json", String::new());
        let traces = read_traces(&run_dir, 1 << 20);
        let seen: Vec<(&str, &str, usize)> =
            traces.iter().map(|t| (t.role.as_str(), t.incarnation.as_str(), t.spans.len())).collect();
        assert_eq!(
            seen,
            [("replica.0", "000001", 2), ("replica.0", "000002", 0), ("trainer.0", "000001", 2)]
        );
        let span = &traces[2].spans[1];
        assert_eq!((span.start_us, span.dur_us, span.step), (2.0, 5.0, Some(3)));
        let cut = read_traces(&run_dir, 100);
        assert!(cut[2].is_cut && cut[2].spans.len() == 1, "{cut:?}");
    }
}
