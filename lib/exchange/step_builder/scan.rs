//! Reading sealed segments and columns.

use std::collections::{BTreeMap, VecDeque};

use slime_record::{ColumnRef, SegmentRef};
use xxhash_rust::xxh3::xxh3_64;

use super::{Order, State, StepBuilder};
use crate::{ColumnRow, Format, Result, SampleDigest, Store};
use slime_config::paths;

/// A group as a segment holds it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub attempt: u32,
    pub segment: SegmentRef,
    pub first_row: u32,
    pub rows: Vec<SampleDigest>,
}

/// Columns computed over one segment, by name.
pub(super) type SegmentColumns = BTreeMap<String, ColumnFiles>;

/// The files of one column over one segment; the first counts.
#[derive(Debug, Clone, Default)]
pub(super) struct ColumnFiles {
    pub files: VecDeque<(ColumnRef, Vec<ColumnRow>)>,
    pub num_refused: u32,
}

impl<F: Format> StepBuilder<F> {
    /// Steps whose folders may hold segments of groups that are drawn.
    fn live_steps(&self) -> Vec<u64> {
        let mut steps: Vec<u64> = self.groups.keys().map(|id| id.0).collect();
        steps.dedup();
        steps
    }

    /// Reads what was sealed. In fixed order later steps are looked into only rarely (`is_rare`), and when they come
    /// next. `front` are the names in the folder of the step that comes next.
    pub(super) fn scan(&mut self, store: &mut dyn Store, front: &[String], is_rare: bool) -> Result<()> {
        for step in self.live_steps() {
            if step == self.step {
                self.scan_segments(store, step, front)?;
            } else if self.config.order == Order::Arrival || is_rare {
                let names = store.list(&paths::step(step))?;
                self.scan_segments(store, step, &names)?;
            } else {
                continue;
            }
            let mut groups = self.groups.range((step, 0)..=(step, u32::MAX));
            if groups.any(|(id, group)| matches!(group.state, State::Waiting) && self.found.contains_key(id))
            {
                self.scan_columns(store, step)?;
            }
        }
        Ok(())
    }

    fn scan_segments(&mut self, store: &mut dyn Store, step: u64, names: &[String]) -> Result<()> {
        for name in names {
            let path = format!("{}/{name}", paths::step(step));
            if paths::parse_parts(name).is_some() && !self.seen_segments.contains(&path) {
                self.read_parts(store, &path)?;
            }
            let Some(segment) = paths::parse_segment(name) else { continue };
            if segment.index < self.config.num_replicas && !self.seen_segments.contains(&path) {
                self.read_segment(store, segment.index, &path)?;
            }
        }
        Ok(())
    }

    fn scan_columns(&mut self, store: &mut dyn Store, step: u64) -> Result<()> {
        for name in self.config.columns.clone() {
            let dir = paths::column(&name, step);
            for file in store.list(&dir)? {
                let path = format!("{dir}/{file}");
                if paths::parse_column_file(&file).is_some() && !self.seen_columns.contains(&path) {
                    self.read_column(store, &name, &path)?;
                }
            }
        }
        Ok(())
    }

    fn read_segment(&mut self, store: &mut dyn Store, replica: u32, path: &str) -> Result<()> {
        let Some(bytes) = store.read(path)? else { return Ok(()) };
        let digest = match self.format.digest(&bytes) {
            Ok(digest) => digest,
            Err(error) => {
                self.owner.check(store)?;
                store.quarantine(path, &error.to_string())?;
                self.seen_segments.insert(path.to_owned());
                self.give_up_segment(replica, path);
                return Ok(());
            }
        };
        let segment = SegmentRef {
            path: path.to_owned(),
            num_bytes: bytes.len() as u64,
            checksum: xxh3_64(&bytes),
            epoch: digest.header.epoch,
        };
        let mut first_row = 0;
        for rows in digest
            .rows
            .chunk_by(|a, b| (a.id.step, a.id.group, a.id.attempt) == (b.id.step, b.id.group, b.id.attempt))
        {
            let id = rows[0].id;
            let found =
                Found { attempt: id.attempt, segment: segment.clone(), first_row, rows: rows.to_vec() };
            self.found.entry((id.step, id.group)).or_default().push(found);
            first_row += rows.len() as u32;
        }
        self.seen_segments.insert(path.to_owned());
        Ok(())
    }

    fn read_column(&mut self, store: &mut dyn Store, name: &str, path: &str) -> Result<()> {
        let Some(bytes) = store.read(path)? else { return Ok(()) };
        match self.format.column(name, &bytes) {
            Ok(column) => {
                let reference = ColumnRef {
                    name: name.to_owned(),
                    path: path.to_owned(),
                    num_bytes: bytes.len() as u64,
                    checksum: xxh3_64(&bytes),
                };
                let columns = self.columns.entry(column.segment).or_default();
                columns.entry(name.to_owned()).or_default().files.push_back((reference, column.rows));
            }
            Err(error) => {
                self.owner.check(store)?;
                store.quarantine(path, &error.to_string())?;
            }
        }
        self.seen_columns.insert(path.to_owned());
        Ok(())
    }

    pub(super) fn forget_old_segments(&mut self) {
        let steps = self.live_steps();
        let oldest = steps.first().copied().unwrap_or(self.step).min(self.step);
        self.found.retain(|id, _| id.0 >= oldest);
        self.parts.retain(|id, _| id.0 >= oldest);
        let first_segment = paths::step(oldest);
        self.seen_segments.retain(|path| *path >= first_segment);
        self.columns.retain(|path, _| *path >= first_segment);
        let columns = &self.config.columns;
        self.seen_columns.retain(|path| columns.iter().any(|name| *path >= paths::column(name, oldest)));
    }
}
