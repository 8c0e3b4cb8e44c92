//! What people, and the end of the run, say to all tools: empty files in `control/`, found with one listing.

use slime_config::paths;

use crate::{Result, Store};

/// The files that are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each file")]
pub struct Control {
    /// `control/stop`: everybody shall drain, and nobody starts the run again by itself.
    pub is_stopping: bool,
    /// `control/save`: the trainer shall take a checkpoint, and removes the file when there is one.
    pub is_saving: bool,
    /// `control/pause`: no prompt is drawn and no step is trained while it is there.
    pub is_paused: bool,
    /// `control/done`: the run is over.
    pub is_done: bool,
}

impl Control {
    /// Looks once.
    pub fn read(store: &mut dyn Store) -> Result<Self> {
        let mut control = Self::default();
        for name in store.list(paths::CONTROL)? {
            match format!("{}/{name}", paths::CONTROL).as_str() {
                paths::STOP => control.is_stopping = true,
                paths::SAVE => control.is_saving = true,
                paths::PAUSE => control.is_paused = true,
                paths::DONE => control.is_done = true,
                _ => {}
            }
        }
        Ok(control)
    }
}
