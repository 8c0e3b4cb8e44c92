//! Unfinished samples that a drained replica left: whoever is asked for their group goes on with them.

use super::{GroupId, Order, StepBuilder};
use crate::replica::Op;
use crate::{Format, Result, Store};

/// The unfinished samples of one group.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    path: String,
    /// Trainer epoch on whose line their versions lie.
    epoch: u64,
    versions: Vec<u64>,
    num_tokens: u64,
    /// The continuation number that they have.
    part: u32,
}

impl<F: Format> StepBuilder<F> {
    /// Reads a file of unfinished samples; one that cannot be read costs no more than its tokens.
    pub(super) fn read_parts(&mut self, store: &mut dyn Store, path: &str) -> Result<()> {
        let Some(bytes) = store.read(path)? else { return Ok(()) };
        self.seen_segments.insert(path.to_owned());
        let Ok(digest) = self.format.digest(&bytes) else { return Ok(()) };
        for rows in digest.rows.chunk_by(|a, b| (a.id.step, a.id.group) == (b.id.step, b.id.group)) {
            let id = (rows[0].id.step, rows[0].id.group);
            let part = rows.iter().map(|row| row.id.part).max().unwrap_or(0);
            let runs = rows.iter().flat_map(|row| &row.trained);
            let parts = Parts {
                path: path.to_owned(),
                epoch: digest.header.epoch,
                versions: runs.map(|run| run.version).collect(),
                num_tokens: rows.iter().map(|row| u64::from(row.response_len)).sum(),
                part,
            };
            if self.parts.get(&id).is_none_or(|known| known.part <= part) {
                self.parts.insert(id, parts);
            }
        }
        Ok(())
    }

    /// What a replica is asked about a group.
    pub(super) fn new_op(&self, id: GroupId) -> Op {
        let group = &self.groups[&id];
        let is_valid = |parts: &&Parts| {
            let mut versions = parts.versions.iter();
            self.config.order == Order::Arrival
                && versions.all(|version| self.lineage.is_valid(*version, parts.epoch))
        };
        Op::New {
            step: id.0,
            group: id.1,
            attempt: group.attempt,
            cursor: group.cursor,
            chosen: group.chosen,
            prompt: group.prompt.body.clone(),
            place: group.place,
            parts: self.parts.get(&id).filter(is_valid).map(|parts| parts.path.clone()),
        }
    }

    /// Tokens of unfinished samples that a judged group, whose samples are of continuation `part`, did not go on with.
    pub(super) fn unused_parts(&mut self, id: GroupId, part: u32) -> u64 {
        self.parts.remove(&id).filter(|parts| parts.part >= part).map_or(0, |parts| parts.num_tokens)
    }
}
