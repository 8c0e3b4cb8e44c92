//! Where a tool's numbers go: its JSON lines, and on wish `TensorBoard` and Prometheus.

use std::path::{Path, PathBuf};

use slime_config::{Metrics, paths};

use crate::append::append;
use crate::event_file::EventFile;
use crate::prometheus::Exposition;
use crate::{Result, Row, cost};

/// The files of one tool; nothing is touched before the first line.
#[derive(Debug)]
pub struct Sink {
    lines: PathBuf,
    events: Option<EventFile>,
    exposition: Option<Exposition>,
}

impl Sink {
    /// The files of `tool` (`train`, `rollout`, `engine-0`) in the run directory `run`.
    pub fn new(run: &Path, tool: &str, settings: &Metrics) -> Self {
        Self {
            lines: run.join(paths::metrics_file(tool)),
            events: settings.tensorboard.then(|| EventFile::new(run.join(paths::tensorboard(tool)))),
            exposition: settings
                .prometheus
                .then(|| Exposition::new(run.join(paths::prometheus_file(tool)), tool)),
        }
    }

    /// Appends the line, and tells its numbers to the others.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&mut self, row: &Row) -> Result<()> {
        cost::counted(|| {
            append(&self.lines, row.to_line().as_bytes())?;
            if let Some(events) = &mut self.events {
                events.write(row)?;
            }
            if let Some(exposition) = &mut self.exposition {
                exposition.write(row)?;
            }
            Ok(())
        })
    }

    /// The lines that were written before, by earlier starts too; a line that is not whole is left out.
    pub fn written(&self) -> Vec<Row> {
        let text = std::fs::read(&self.lines).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(Row::parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended_whole_and_read_back_by_a_later_start() {
        let run = tempfile::tempdir().unwrap();
        for step in 0..2 {
            let mut sink = Sink::new(run.path(), "train", &Metrics::default());
            let mut row = Row::of_step(step, "train");
            row.set("train/loss", 0.5);
            sink.write(&row).unwrap();
        }
        append(&run.path().join("metrics/train.jsonl"), b"{\"step\":2,\"tra").unwrap();
        let sink = Sink::new(run.path(), "train", &Metrics::default());
        let steps: Vec<_> = sink.written().iter().map(Row::step).collect();
        assert_eq!(steps, [Some(0), Some(1)]);
        assert!(!run.path().join("tensorboard").exists() && !run.path().join("metrics/train.prom").exists());
    }

    #[test]
    fn tensorboard_and_prometheus_get_the_same_numbers_on_wish() {
        let run = tempfile::tempdir().unwrap();
        let settings = Metrics { tensorboard: true, prometheus: true, ..Metrics::default() };
        let mut sink = Sink::new(run.path(), "train", &settings);
        let mut row = Row::of_step(7, "train");
        row.set("train/loss", 0.5);
        sink.write(&row).unwrap();
        let events = std::fs::read_dir(run.path().join("tensorboard/train")).unwrap().count();
        assert_eq!(events, 1);
        let text = std::fs::read_to_string(run.path().join("metrics/train.prom")).unwrap();
        assert!(text.contains("slime_train_loss{tool=\"train\"} 0.5\n"), "{text}");
    }
}
