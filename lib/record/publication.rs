//! The publication of a policy version and the epoch file that makes the trainer's line of versions.

use serde::{Deserialize, Serialize};

/// Content of `epoch/000003`: created exclusively at each start of the trainer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    /// Number of this epoch; the newest is the living one.
    pub epoch: u64,
    /// Epoch that wrote the checkpoint this one continues; none at an import.
    pub parent: Option<u64>,
    /// Version of that checkpoint (0 at an import): versions up to it stay on the line.
    pub checkpoint: u64,
    /// The process that made it: host, boot, number and start.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
}

/// Checksum of one published tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorChecksum {
    /// Hugging Face name.
    pub name: String,
    /// xxh3-64 of each 16 MiB chunk of its bytes.
    pub chunks: Vec<u64>,
}

/// The version whose changes another one tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Its number.
    pub version: u64,
    /// The epoch that published it.
    pub epoch: u64,
    /// What identifies its weights.
    pub hash: u64,
}

/// Where in the memory of a node weights lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// The node's name, for messages.
    pub host: String,
    /// This start of its system: memory is gone with it.
    pub boot: String,
    /// The weight directory.
    pub dir: String,
}

/// Content of `version/000042.e003.json`: the publication of one policy version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The policy after this many training steps.
    pub version: u64,
    /// Trainer epoch that published it.
    pub epoch: u64,
    /// Earlier version with the same weights, when the step changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<u64>,
    /// How the weights travel: `disk`, `delta`, `shm` or the name of a device transport.
    pub transport: String,
    /// Folder below the run directory, when they are (also) on disk: a weight directory, or one that holds what changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The version that `path` tells the changes of; none for a whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// Where they lie in a node's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<NodeMemory>,
    /// Bytes of tensors, or of what changed in them, that were sent.
    #[serde(default)]
    pub num_bytes: u64,
    /// Hash over all tensors; what identifies the weights.
    pub hash: u64,
    /// Checksums per tensor, for a reader that verifies what it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<TensorChecksum>,
}
