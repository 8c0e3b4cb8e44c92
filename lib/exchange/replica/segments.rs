//! Finished groups on their way into sealed segments.

use std::collections::BTreeMap;

use slime_config::paths;
use slime_record::SampleId;

use super::{GroupId, Replica, ReplicaAction, ReplicaConfig};
use crate::{Format, Result, SegmentHeader, Store};

/// The segment of each group that is sealed, by attempt; none while it is being filled.
pub(super) type Sealed = BTreeMap<(GroupId, u32), Option<String>>;

#[derive(Debug, Clone)]
pub(super) struct Pending<R> {
    since_ms: u64,
    num_bytes: usize,
    rows: Vec<R>,
    groups: Vec<(GroupId, u32)>,
}

/// Unfinished samples by step and epoch.
pub(super) type Unfinished<R> = BTreeMap<(u64, u64), Vec<R>>;

/// A complete segment that is not yet under its name.
#[derive(Debug, Clone)]
pub(super) struct Unwritten<R> {
    path: String,
    header: SegmentHeader,
    rows: Vec<R>,
}

impl<F: Format> Replica<F> {
    /// Moves finished groups that are still wanted to the segments being filled.
    pub(super) fn keep_finished(&mut self, now_ms: u64) {
        for (id, attempt, rows) in std::mem::take(&mut self.finished) {
            let Some(running) = self.running.get(&id).filter(|running| running.attempt == attempt) else {
                continue;
            };
            let epoch = running.epoch;
            self.running.remove(&id);
            if self.asked.get(&id).is_none_or(|asked| asked.attempt != attempt) {
                continue;
            }
            let num_bytes: usize = rows.iter().map(|row| self.format.row_bytes(row)).sum();
            let pending = self.pending.entry((id.0, epoch)).or_insert_with(|| Pending {
                since_ms: now_ms,
                num_bytes: 0,
                rows: Vec::new(),
                groups: Vec::new(),
            });
            pending.num_bytes += num_bytes;
            pending.rows.extend(rows);
            pending.groups.push((id, attempt));
            self.asked.remove(&id);
            self.sealed.insert((id, attempt), None);
        }
    }

    pub(super) fn seal_due(&mut self, store: &mut dyn Store) -> Result<()> {
        // With nothing left to generate nothing can be added either, so the step need not wait for the clock.
        let is_idle = self.asked.is_empty();
        while let Some((&(step, epoch), _)) = self.pending.iter().find(|(_, pending)| {
            is_idle
                || self.is_draining
                || pending.num_bytes >= self.config.seal_bytes
                || store.now_ms() >= pending.since_ms + self.config.seal_ms
        }) {
            let header = SegmentHeader {
                step,
                epoch,
                replica: self.config.index,
                incarnation: self.owner.incarnation,
            };
            let path = paths::segment(step, self.config.index, self.owner.incarnation, self.next_segment);
            self.next_segment += 1;
            let Some(pending) = self.pending.remove(&(step, epoch)) else { continue };
            for key in pending.groups {
                self.sealed.insert(key, Some(path.clone()));
            }
            self.writing = Some(Unwritten { path, header, rows: pending.rows });
            self.finish_writing(store)?;
        }
        Ok(())
    }

    /// Seals what is there, unfinished samples too where they are kept, and ends.
    pub(super) fn end(&mut self, store: &mut dyn Store) -> Result<()> {
        if !self.pending.is_empty() {
            return Ok(());
        }
        let keeps = self.config.keeps_parts && self.is_draining;
        if keeps && self.unfinished.is_none() && !self.running.is_empty() {
            self.actions.push(ReplicaAction::Surrender);
            return Ok(());
        }
        while let Some(((step, epoch), rows)) = self.unfinished.as_mut().and_then(BTreeMap::pop_first) {
            let (replica, incarnation) = (self.config.index, self.owner.incarnation);
            let header = SegmentHeader { step, epoch, replica, incarnation };
            let path = paths::parts(step, replica, incarnation, self.next_segment);
            self.next_segment += 1;
            self.writing = Some(Unwritten { path, header, rows });
            self.finish_writing(store)?;
        }
        self.actions.push(ReplicaAction::Done);
        Ok(())
    }

    /// A failed seal is repeated with the same name and bytes, since it may have been done.
    pub(super) fn finish_writing(&mut self, store: &mut dyn Store) -> Result<()> {
        if let Some(Unwritten { path, header, rows }) = &self.writing {
            self.owner.check(store)?;
            store.seal_with(path, &mut |out| self.format.write(header, rows, out))?;
            self.writing = None;
        }
        Ok(())
    }
}

/// What earlier incarnations of this replica sealed; the builder adopts it, so it is not generated again.
pub(super) fn sealed_before<F: Format>(
    store: &mut dyn Store,
    steps: impl Iterator<Item = u64>,
    config: &ReplicaConfig,
    format: &F,
) -> Result<Sealed> {
    let mut sealed = Sealed::new();
    for step in steps {
        let dir = paths::step(step);
        for name in store.list(&dir)? {
            if paths::parse_segment(&name).is_none_or(|segment| segment.index != config.index) {
                continue;
            }
            let path = format!("{dir}/{name}");
            if let Some(bytes) = store.read(&path)?
                && let Ok(digest) = format.digest(&bytes)
            {
                let key = |id: SampleId| ((id.step, id.group), id.attempt);
                sealed.extend(digest.rows.iter().map(|row| (key(row.id), Some(path.clone()))));
            }
        }
    }
    Ok(sealed)
}
