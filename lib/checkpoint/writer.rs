//! The writer thread: one checkpoint at a time is written beside training.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, Result, Snapshot, write};

/// Writes snapshots in the background, one at a time. Dropped, it waits for the one in flight.
#[derive(Debug)]
pub struct Writer {
    patience: Duration,
    in_flight: Option<(PathBuf, JoinHandle<Result<()>>)>,
}

impl Writer {
    /// `patience`: how long rank 0 waits for the parts of other ranks.
    pub fn new(patience: Duration) -> Self {
        Self { patience, in_flight: None }
    }

    /// Starts writing `snapshot` to `dir`. Waits for the one before, whose error is returned instead: then nothing new
    /// was started. Returns the folder of the one before, now written as far as this rank is concerned.
    pub fn submit(&mut self, dir: PathBuf, snapshot: Snapshot) -> Result<Option<PathBuf>> {
        let before = self.wait()?;
        let (path, patience) = (dir.clone(), self.patience);
        let thread = std::thread::Builder::new().name("checkpoint".into());
        let handle = thread.spawn(move || write(&path, &snapshot, patience));
        let handle = handle.map_err(Error::io("start the writer of", &dir))?;
        self.in_flight = Some((dir, handle));
        Ok(before)
    }

    /// Whether a write goes on.
    pub fn is_busy(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|(_, handle)| !handle.is_finished())
    }

    /// The folder of a write that has ended since the last call, or its error; does not wait.
    pub fn poll(&mut self) -> Result<Option<PathBuf>> {
        if self.is_busy() { Ok(None) } else { self.wait() }
    }

    /// Waits for the write in flight and returns its folder, or its error.
    pub fn wait(&mut self) -> Result<Option<PathBuf>> {
        let Some((dir, handle)) = self.in_flight.take() else { return Ok(None) };
        handle.join().map_err(|_| Error::WriterPanicked)??;
        Ok(Some(dir))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((_, handle)) = self.in_flight.take() {
            // The checkpoint was asked for; its error has no listener any more, and no COMPLETE says the same.
            let _ = handle.join();
        }
    }
}
