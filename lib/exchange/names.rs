//! Names inside the run directory that the owners write and read back.

use serde::{Deserialize, Serialize};

/// A physical version: its number and the trainer epoch that published it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Physical {
    /// Policy after this many training steps.
    pub version: u64,
    /// Epoch that published it.
    pub epoch: u64,
}

impl std::fmt::Display for Physical {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:06}.e{:03}", self.version, self.epoch)
    }
}

/// Owner name of the step builder.
pub(crate) const BUILDER: &str = "builder.0";

/// Folder of the trainer's epochs.
pub const EPOCHS: &str = "epoch";
/// Folder of the publications.
pub const VERSIONS: &str = "version";
/// Folder of the weights on disk.
pub const WEIGHTS: &str = "weights";
/// Folder of the steps.
pub const ROLLOUT: &str = "rollout";
/// Folder of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoint";
/// The whole run is over.
pub const DONE: &str = "control/done";
/// Everybody shall drain.
pub const STOP: &str = "control/stop";

/// `epoch/000003`
pub fn epoch(epoch: u64) -> String {
    format!("{EPOCHS}/{epoch:06}")
}

/// `owner/<owner>`
pub fn owner_dir(owner: &str) -> String {
    format!("owner/{owner}")
}

/// `heartbeat/<owner>.json`
pub fn heartbeat(owner: &str) -> String {
    format!("heartbeat/{owner}.json")
}

/// `version/000042.e003.json`
pub fn version(version: Physical) -> String {
    format!("{VERSIONS}/{version}.json")
}

/// `weights/000042.e003`
pub fn weights(version: Physical) -> String {
    format!("{WEIGHTS}/{version}")
}

/// `checkpoint/000040.e003`
pub fn checkpoint(version: Physical) -> String {
    format!("{CHECKPOINTS}/{version}")
}

/// `rollout/000042`
pub fn step(step: u64) -> String {
    format!("{ROLLOUT}/{step:06}")
}

/// `rollout/000042/MANIFEST.json`
pub fn manifest(step: u64) -> String {
    format!("{ROLLOUT}/{step:06}/MANIFEST.json")
}

/// `rollout/000042/replica-1`
pub fn segments(step: u64, replica: u32) -> String {
    format!("{ROLLOUT}/{step:06}/replica-{replica}")
}

/// `rollout/000042/assign/replica-1`
pub fn assignments(step: u64, replica: u32) -> String {
    format!("{ROLLOUT}/{step:06}/assign/replica-{replica}")
}

/// `<incarnation>.<seq>.<extension>`
pub fn numbered(incarnation: u64, seq: u64, extension: &str) -> String {
    format!("{incarnation:06}.{seq:06}.{extension}")
}

/// `column/reward/000042`
pub fn column(name: &str, step: u64) -> String {
    format!("column/{name}/{step:06}")
}

/// `eval/000040.e003`
pub fn evaluation(version: Physical) -> String {
    format!("eval/{version}")
}

/// Reads `000042` back.
pub fn parse_number(name: &str) -> Option<u64> {
    name.parse().ok()
}

/// Reads `000042.e003` (with or without `.json`) back.
pub fn parse_physical(name: &str) -> Option<Physical> {
    let (version, epoch) = name.strip_suffix(".json").unwrap_or(name).split_once(".e")?;
    Some(Physical { version: version.parse().ok()?, epoch: epoch.parse().ok()? })
}

/// Reads `<incarnation>.<seq>.<extension>` back.
pub fn parse_numbered(name: &str) -> Option<(u64, u64)> {
    let mut parts = name.split('.');
    let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (parts.next().is_some() && parts.next().is_none()).then_some(numbers)
}

/// Whether a name is the note beside a broken file.
pub fn is_quarantined(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| extension == "bad")
}
