//! Unfinished samples in the simulator: what a drained replica hands over, and what the next one goes on with.

use slime_record::{SampleId, VersionRun};

use super::format::{SimFormat, SimPolicy};
use crate::{Format, SampleDigest, Store};

/// What a group that goes on has of earlier times: the tokens of its samples, and their continuation number.
#[derive(Clone, Default)]
pub(super) struct Before {
    pub versions: Vec<Vec<VersionRun>>,
    pub part: u32,
}

impl Before {
    /// What a file of unfinished samples has of a group; nothing where it cannot be read.
    pub fn read(store: &mut dyn Store, path: Option<String>, (step, group): (u64, u32)) -> Self {
        let bytes = path.and_then(|path| store.read(&path).ok().flatten());
        let Some(digest) = bytes.and_then(|bytes| SimFormat.digest(&bytes).ok()) else {
            return Self::default();
        };
        let rows: Vec<_> =
            digest.rows.into_iter().filter(|row| (row.id.step, row.id.group) == (step, group)).collect();
        let part = rows.iter().map(|row| row.id.part + 1).max().unwrap_or(0);
        Self { versions: rows.into_iter().map(|row| row.trained).collect(), part }
    }

    /// The tokens that sample `index` had before.
    pub fn of(&self, index: u32) -> Vec<VersionRun> {
        self.versions.get(index as usize).cloned().unwrap_or_default()
    }

    /// The group's samples with one token more than they had.
    pub fn one_more(&self, group: SampleId, prompt: &str, version: u64) -> Vec<SampleDigest> {
        let row = |index| {
            let mut trained = self.of(index);
            trained.push(VersionRun { version, len: 1 });
            SampleDigest {
                id: SampleId { index, part: self.part, ..group },
                prompt_id: prompt.to_owned(),
                tokens_hash: 0,
                response_len: trained.iter().map(|run| run.len).sum(),
                trained,
                failed: false,
                truncated: false,
            }
        };
        (0..SimPolicy::num_samples(prompt)).map(row).collect()
    }
}
