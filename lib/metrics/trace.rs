//! Spans of one process as Chrome's trace format (a JSON array of events), which Perfetto opens.
//!
//! The file only grows: `[`, then one event a line; the format does not need its end (Trace Event Format, "JSON Array
//! Format"). Spans are buffered and written in one piece, at least every few seconds while there are some.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slime_config::{Metrics, paths};

use crate::append::append;
use crate::cost;
use crate::row::unix_time;

/// Spans are written when so many bytes of them have come together.
const BUFFER_BYTES: usize = 256 << 10;
/// They are written when the last ones were written so long ago.
const BUFFER_TIME: Duration = Duration::from_secs(2);

/// A handle to the trace of a role; clones write to the same file. The default records nothing.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    recorder: Option<Arc<Mutex<Recorder>>>,
}

#[derive(Debug)]
struct Recorder {
    path: PathBuf,
    buffer: String,
    flushed: Instant,
    /// The same moment on both clocks.
    base: (Instant, f64),
    pid: u32,
}

/// One span.
#[derive(Debug, Clone)]
pub struct Span<'a> {
    /// What was done.
    pub name: &'a str,
    /// By which part: `trainer`, `replica`, `builder`, `reward`.
    pub category: &'a str,
    /// Its row among those of the process.
    pub lane: u64,
    /// When it began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What else there is to say: an object.
    pub args: Value,
}

impl Trace {
    /// The trace of `role` (`trainer.0`, `replica.1`) in the run directory `run`; records nothing where the settings say
    /// so.
    pub fn start(run: &Path, role: &str, incarnation: u64, settings: &Metrics) -> Self {
        if !settings.trace {
            return Self::default();
        }
        let pid = std::process::id();
        let recorder = Recorder {
            path: run.join(paths::trace_file(role, incarnation)),
            buffer: "[\n".to_owned(),
            flushed: Instant::now(),
            base: (Instant::now(), unix_time()),
            pid,
        };
        let trace = Self { recorder: Some(Arc::new(Mutex::new(recorder))) };
        trace.name("process_name", 0, role);
        trace
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// The file, for people.
    pub fn path(&self) -> Option<PathBuf> {
        self.lock().map(|recorder| recorder.path.clone())
    }

    /// Gives a row its name.
    pub fn name_lane(&self, lane: u64, name: &str) {
        self.name("thread_name", lane, name);
    }

    fn name(&self, what: &str, lane: u64, name: &str) {
        let Some(mut recorder) = self.lock() else { return };
        let pid = recorder.pid;
        let event = json!({"ph": "M", "name": what, "pid": pid, "tid": lane, "args": {"name": name}});
        writeln!(recorder.buffer, "{event},").expect("a string grows");
    }

    /// Records a span.
    pub fn span(&self, span: &Span<'_>) {
        if !self.is_on() {
            return;
        }
        cost::counted(|| {
            let Some(mut recorder) = self.lock() else { return };
            let (ts, pid) = (recorder.unix_us(span.began), recorder.pid);
            let dur = span.ended.saturating_duration_since(span.began).as_micros() as u64;
            let Span { name, category, lane, args, .. } = span;
            writeln!(
                recorder.buffer,
                "{{\"ph\":\"X\",\"name\":{},\"cat\":\"{category}\",\"ts\":{ts},\"dur\":{dur},\"pid\":{pid},\"tid\":{lane},\
                 \"args\":{args}}},",
                Value::from(*name)
            )
            .expect("a string grows");
            if recorder.buffer.len() >= BUFFER_BYTES || recorder.flushed.elapsed() >= BUFFER_TIME {
                recorder.flush();
            }
        });
    }

    /// Records what began at `began` and ends now, in row 0, about a step.
    pub fn step_span(&self, name: &str, category: &str, step: u64, began: Instant) {
        let (ended, args) = (Instant::now(), json!({ "step": step }));
        self.span(&Span { name, category, lane: 0, began, ended, args });
    }

    /// Writes what is buffered.
    pub fn flush(&self) {
        cost::counted(|| {
            if let Some(mut recorder) = self.lock() {
                recorder.flush();
            }
        });
    }

    fn lock(&self) -> Option<MutexGuard<'_, Recorder>> {
        Some(self.recorder.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Recorder {
    fn unix_us(&self, moment: Instant) -> u64 {
        let (instant, unix_s) = self.base;
        let since = moment.saturating_duration_since(instant).as_secs_f64();
        let before = instant.saturating_duration_since(moment).as_secs_f64();
        ((unix_s + since - before) * 1e6) as u64
    }

    /// A trace is for people: where it cannot be written the work goes on, and the loss is said.
    fn flush(&mut self) {
        self.flushed = Instant::now();
        if self.buffer.is_empty() {
            return;
        }
        if let Err(error) = append(&self.path, self.buffer.as_bytes()) {
            tracing::warn!("spans of the trace are lost: {error}");
        }
        self.buffer.clear();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_an_array_without_its_end_and_every_line_an_event() {
        let run = tempfile::tempdir().unwrap();
        let trace = Trace::start(run.path(), "trainer.0", 3, &Metrics::default());
        let began = Instant::now();
        trace.step_span("actor_train", "trainer", 7, began);
        let args = json!({"group": 1});
        trace.span(&Span { name: "a \"b\"", category: "replica", lane: 2, began, ended: began, args });
        trace.flush();
        trace.step_span("late", "trainer", 8, began);
        drop(trace);
        let text = std::fs::read_to_string(run.path().join("trace/trainer.0.000003.json")).unwrap();
        let events: Vec<Value> =
            serde_json::from_str(&format!("{}]", text.trim_end().trim_end_matches(','))).unwrap();
        assert_eq!(events[0]["args"]["name"], "trainer.0");
        assert_eq!((&events[1]["name"], &events[1]["args"]["step"]), (&json!("actor_train"), &json!(7)));
        assert_eq!((&events[2]["name"], &events[2]["tid"]), (&json!("a \"b\""), &json!(2)));
        assert_eq!(events[3]["name"], "late");
        let now_us = unix_time() * 1e6;
        assert!((now_us - events[1]["ts"].as_f64().unwrap()).abs() < 60e6, "microseconds since 1970");
    }

    #[test]
    fn nothing_is_recorded_where_it_is_switched_off() {
        let run = tempfile::tempdir().unwrap();
        let trace = Trace::start(run.path(), "a", 1, &Metrics { trace: false, ..Metrics::default() });
        trace.step_span("x", "trainer", 0, Instant::now());
        trace.flush();
        assert!(!trace.is_on() && !run.path().join("trace").exists());
    }
}
