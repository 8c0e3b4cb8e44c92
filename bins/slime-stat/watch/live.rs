//! The live view's loop: looks at the run, draws, listens to the keyboard, and leaves the terminal as it was.

use std::fs;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read as read_event};
use slime_cli::{Failure, drain, exit};
use slime_config::RunDir;

use super::screen::{View, draw};
use super::{left, num_steps, phase};
use crate::read_engines::read_newest;
use crate::read_metrics::{Metrics, read};
use crate::read_steps::{ShownGroup, committed_steps, read_step};
use crate::read_warnings::read_warnings;

/// Pause between two looks at the run; keys are heard at once.
const PAUSE: Duration = Duration::from_millis(700);
/// Groups of the newest step whose samples are shown.
const NUM_GROUPS: usize = 4;

/// Shows the run until `q` is pressed or this process is asked to end.
///
/// # Errors
/// The run cannot be read, or the terminal cannot be drawn on.
pub fn stay(run: &str) -> Result<(), Failure> {
    let mut looker = Looker::new(run)?;
    // Anything that is wrong with the run is said before the screen is taken.
    let mut view = looker.look()?;
    drain::install_for_terminal();
    let broken = |error: std::io::Error| Failure::io("terminal", &error);
    // Its panic hook gives the terminal back before the panic is told.
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::new(exit::IO, format!("terminal: {error}")))?;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &view)) {
            break Err(broken(error));
        }
        match wants_to_leave() {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(broken(error)),
        }
        match looker.look() {
            Ok(new) => view = new,
            Err(failure) => break Err(failure),
        }
    };
    ratatui::restore();
    result
}

/// Waits for a key as long as the pause is; a signal ends the wait too.
fn wants_to_leave() -> std::io::Result<bool> {
    let until = Instant::now() + PAUSE;
    loop {
        if drain::requested() {
            return Ok(true);
        }
        let wait = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
        if wait.is_zero() {
            return Ok(false);
        }
        if !poll(wait)? {
            continue;
        }
        match read_event()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let is_interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(true);
                }
            }
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
}

/// Remembers what it saw, so that only what changed is read again.
struct Looker {
    run: String,
    dir: RunDir,
    num_steps: Option<u64>,
    /// Bytes of all metric files when they were read.
    num_bytes: u64,
    metrics: Metrics,
    samples: (Option<u64>, Vec<ShownGroup>),
    step_began: Instant,
}

impl Looker {
    fn new(run: &str) -> Result<Self, Failure> {
        let dir = RunDir::new(run);
        let metrics = read(run)?;
        let num_steps = num_steps(&dir)?;
        let (samples, step_began) = ((None, Vec::new()), Instant::now());
        Ok(Self { run: run.to_owned(), dir, num_steps, num_bytes: 0, metrics, samples, step_began })
    }

    fn look(&mut self) -> Result<View, Failure> {
        let entries = fs::read_dir(self.dir.metrics()).into_iter().flatten().flatten();
        let num_bytes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        let is_done = self.dir.control("done").exists();
        if num_bytes != self.num_bytes || is_done {
            let num_before = self.metrics.num_trained();
            self.metrics = read(&self.run)?;
            self.num_bytes = num_bytes;
            if self.metrics.num_trained() != num_before {
                self.step_began = Instant::now();
            }
        }
        let newest = committed_steps(&self.dir).pop();
        if newest != self.samples.0 {
            // Samples that cannot be read yet are shown at the next step.
            let groups = newest.and_then(|step| read_step(&self.dir, step, NUM_GROUPS, None).ok());
            self.samples = (newest, groups.unwrap_or_default());
        }
        let name = self
            .dir
            .root()
            .file_name()
            .map_or_else(|| self.run.clone(), |n| n.to_string_lossy().into_owned());
        Ok(View {
            name,
            is_done,
            phase: if is_done { "done".to_owned() } else { phase(&self.dir, &self.metrics) },
            left: if is_done {
                String::new()
            } else {
                left(&self.metrics, self.num_steps, self.step_began.elapsed())
            },
            num_steps: self.num_steps,
            engines: read_newest(&self.dir),
            warnings: read_warnings(&self.dir),
            samples: self.samples.1.clone(),
            metrics: self.metrics.clone(),
        })
    }
}
