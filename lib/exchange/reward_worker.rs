//! The reward worker: computes one column over every sealed segment of the open steps, once per segment.
//!
//! Rewards are pure functions, so two workers that score the same segment do no harm; the manifest pins one file.
//!
//! Driver loop:
//! ```text
//! let mut worker = RewardWorker::start(&mut store, config, format)?;
//! loop {
//!     for action in worker.poll(&mut store)? {
//!         match action {
//!             Score { segment, bytes } => worker.on_scored(segment, rows_with_values(bytes)),
//!             Done => return Ok(()),
//!         }
//!     }
//! }
//! ```

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::steps::open_steps;
use crate::{Bytes, ColumnDigest, ColumnRow, Format, Heartbeat, Owner, Result, Store};
use slime_config::paths;

/// Settings of a reward worker.
#[derive(Debug, Clone)]
pub struct RewardWorkerConfig {
    /// Name of the column, for example `reward`.
    pub column: String,
    /// Which worker this is; it scores the segments whose hash falls to it.
    pub index: u32,
    /// How many workers compute the column.
    pub num_workers: u32,
    /// Segments handed out at once.
    pub max_in_flight: usize,
    /// Time between heartbeats.
    pub beat_ms: u64,
}

/// What the driver shall do.
#[derive(Debug, Clone)]
pub enum RewardAction {
    /// Score every row of a segment, then call [`RewardWorker::on_scored`].
    Score {
        /// Path of the segment.
        segment: String,
        /// Its content.
        bytes: Bytes,
    },
    /// The run is over or drained.
    Done,
}

/// After how long a committed step is looked at again: twice as long each time that there is nothing.
const FIRST_LOOK_MS: u64 = 250;
const LAST_LOOK_MS: u64 = 30_000;

#[derive(Debug, Clone, Copy, Default)]
struct Look {
    next_ms: u64,
    wait_ms: u64,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct RewardWorker<F: Format> {
    config: RewardWorkerConfig,
    format: F,
    pub(crate) owner: Owner,
    beat: Heartbeat,
    next_beat_ms: u64,
    /// Segments that need no scoring: a column over them exists, or they are broken.
    done: BTreeSet<String>,
    /// When committed steps are looked at again.
    looks: BTreeMap<u64, Look>,
    /// Column files with the segment each is about; those the builder refused are taken out.
    columns: BTreeMap<String, Option<String>>,
    in_flight: BTreeSet<String>,
    scored: Vec<(String, Vec<ColumnRow>)>,
    writing: Option<(String, Vec<u8>)>,
    next_seq: u64,
    /// Kept over failed polls, so none is lost.
    actions: Vec<RewardAction>,
    is_draining: bool,
}

impl<F: Format> RewardWorker<F> {
    /// Claims the next incarnation.
    pub fn start(store: &mut dyn Store, config: RewardWorkerConfig, format: F) -> Result<Self> {
        let owner = Owner::claim(store, &paths::worker(&config.column, config.index))?;
        let mut dirs = Vec::new();
        for step in open_steps(store)? {
            let dir = paths::column(&config.column, step);
            dirs.extend(store.list(&dir)?.iter().map(|writer| format!("{dir}/{writer}")));
        }
        owner.sweep(store, dirs)?;
        Ok(Self {
            config,
            format,
            beat: Heartbeat { incarnation: owner.incarnation, ..Heartbeat::default() },
            owner,
            next_beat_ms: 0,
            done: BTreeSet::new(),
            looks: BTreeMap::new(),
            columns: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            scored: Vec::new(),
            writing: None,
            next_seq: 0,
            actions: Vec::new(),
            is_draining: false,
        })
    }

    /// Values of all rows of a segment, in row order.
    pub fn on_scored(&mut self, segment: String, rows: Vec<ColumnRow>) {
        self.scored.push((segment, rows));
    }

    /// Ends after sealing what is scored.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// One round: seal what is scored, hand out what is new.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Vec<RewardAction>> {
        self.owner.check(store)?;
        if store.now_ms() >= self.next_beat_ms {
            self.beat.beat(store, &self.owner.name)?;
            self.next_beat_ms = store.now_ms() + self.config.beat_ms;
        }
        self.seal_scored(store)?;
        if self.is_draining || store.exists(paths::DONE)? {
            return Ok(vec![RewardAction::Done]);
        }
        for step in open_steps(store)?.into_iter().rev() {
            let now_ms = store.now_ms();
            if self.looks.get(&step).is_some_and(|look| now_ms < look.next_ms) {
                continue;
            }
            let folders = store.list(&paths::step(step))?;
            self.read_columns(store, step)?;
            let unscored = self.unscored(store, step, &folders)?;
            // A committed step may still get groups that a later one takes, but hardly ever.
            let is_committed = folders.iter().any(|name| paths::manifest(step).ends_with(name.as_str()));
            if is_committed && unscored.is_empty() {
                let look = self.looks.entry(step).or_default();
                look.wait_ms = (2 * look.wait_ms).clamp(FIRST_LOOK_MS, LAST_LOOK_MS);
                look.next_ms = now_ms + look.wait_ms;
            } else {
                self.looks.remove(&step);
            }
            for path in unscored {
                let is_mine = xxh3_64(path.as_bytes()) % u64::from(self.config.num_workers)
                    == u64::from(self.config.index);
                if !is_mine || self.in_flight.len() >= self.config.max_in_flight {
                    continue;
                }
                if let Some(bytes) = store.read(&path)? {
                    if self.format.digest(&bytes).is_err() {
                        // The builder says so and asks for its groups again.
                        self.done.insert(path);
                        continue;
                    }
                    self.in_flight.insert(path.clone());
                    self.actions.push(RewardAction::Score { segment: path, bytes });
                }
            }
        }
        Ok(std::mem::take(&mut self.actions))
    }

    fn unscored(&self, store: &mut dyn Store, step: u64, folders: &[String]) -> Result<Vec<String>> {
        let mut segments = Vec::new();
        for folder in folders {
            if !folder.starts_with("replica-") {
                continue;
            }
            let dir = format!("{}/{folder}", paths::step(step));
            for name in store.list(&dir)? {
                let path = format!("{dir}/{name}");
                let is_new = !self.done.contains(&path) && !self.in_flight.contains(&path);
                if is_new && paths::parse_sequence(&name).is_some() {
                    segments.push(path);
                }
            }
        }
        Ok(segments)
    }

    /// Learns what earlier incarnations and other workers computed, and what of all that the builder refused.
    fn read_columns(&mut self, store: &mut dyn Store, step: u64) -> Result<()> {
        let dir = paths::column(&self.config.column, step);
        for writer in store.list(&dir)? {
            for file in store.list(&format!("{dir}/{writer}"))? {
                let path = format!("{dir}/{writer}/{file}");
                if let Some(refused) = paths::parse_quarantine(&path) {
                    self.forget_column(refused);
                } else if !self.columns.contains_key(&path) {
                    let Some(bytes) = store.read(&path)? else { continue };
                    let column = self.format.column(&self.config.column, &bytes);
                    let segment = column.ok().map(|column| column.segment);
                    self.done.extend(segment.clone());
                    self.columns.insert(path, segment);
                }
            }
        }
        Ok(())
    }

    /// The segment of a refused column is scored again, unless another file has it.
    fn forget_column(&mut self, path: &str) {
        let segment = self.columns.insert(path.to_owned(), None).flatten();
        if let Some(segment) = segment
            && !self.columns.values().flatten().any(|other| *other == segment)
        {
            self.done.remove(&segment);
        }
    }

    fn seal_scored(&mut self, store: &mut dyn Store) -> Result<()> {
        loop {
            // A failed seal is repeated with the same name and bytes, since it may have been done.
            if let Some((path, bytes)) = &self.writing {
                store.seal(path, bytes)?;
                self.writing = None;
            }
            let Some((segment, rows)) = self.scored.pop() else { return Ok(()) };
            self.in_flight.remove(&segment);
            let step = segment.split('/').nth(1).and_then(paths::parse_number).unwrap_or(0);
            let (index, incarnation) = (self.config.index, self.owner.incarnation);
            let path = paths::column_file(&self.config.column, step, index, incarnation, self.next_seq);
            let column = ColumnDigest { segment: segment.clone(), rows };
            self.columns.insert(path.clone(), Some(segment.clone()));
            self.writing = Some((path, self.format.encode_column(&self.config.column, &column)?));
            self.next_seq += 1;
            self.done.insert(segment);
        }
    }
}
