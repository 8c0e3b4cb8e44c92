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

use crate::steps::{Front, open_steps};
use crate::{Bytes, ColumnDigest, ColumnRow, Control, Format, Heartbeat, Owner, Result, Store};
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
    /// The run's bound on staleness: so many steps behind the front may be open.
    pub max_staleness: u64,
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

/// Beats after which a worker looks at what the builder refused.
const RARE_BEATS: u64 = 2;

/// The machine.
#[derive(Debug, Clone)]
pub struct RewardWorker<F: Format> {
    config: RewardWorkerConfig,
    format: F,
    pub(crate) owner: Owner,
    beat: Heartbeat,
    next_beat_ms: u64,
    next_rare_ms: u64,
    front: Front,
    /// Segments that need no scoring, since a column over them exists.
    done: BTreeSet<String>,
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
        let dirs = open_steps(store)?.into_iter().map(|step| paths::column(&config.column, step));
        owner.sweep(store, dirs.collect())?;
        let front = Front::find(store)?;
        Ok(Self {
            config,
            format,
            beat: Heartbeat::of(owner.incarnation),
            owner,
            next_beat_ms: 0,
            next_rare_ms: 0,
            front,
            done: BTreeSet::new(),
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

    /// This start among those of its owner.
    pub fn incarnation(&self) -> u64 {
        self.owner.incarnation
    }

    /// Ends after sealing what is scored.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether it ends, or has ended, before the run is over.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// One round: seal what is scored, hand out what is new.
    pub fn poll(&mut self, store: &mut dyn Store) -> Result<Vec<RewardAction>> {
        let now_ms = store.now_ms();
        if now_ms >= self.next_beat_ms {
            self.owner.check(store)?;
            self.beat.beat(store, &self.owner.name)?;
            self.next_beat_ms = now_ms + self.config.beat_ms;
        }
        self.seal_scored(store)?;
        let control = Control::read(store)?;
        self.is_draining |= control.is_stopping;
        if self.is_draining || control.is_done {
            return Ok(vec![RewardAction::Done]);
        }
        let before = self.front.step;
        let mut seen = self.front.advance(store)?;
        if self.front.step > before {
            self.forget_old();
        }
        let open = self.front.step + 1..=self.front.step + self.config.max_staleness;
        for step in self.front.outstanding.iter().copied().chain(open) {
            if seen.iter().all(|(known, _)| *known != step) {
                seen.push((step, store.list(&paths::step(step))?));
            }
        }
        seen.retain(|(step, _)| *step >= self.front.step || self.front.outstanding.contains(step));
        seen.sort();
        if now_ms >= self.next_rare_ms {
            let is_first = self.next_rare_ms == 0;
            for (step, _) in &seen {
                self.read_columns(store, *step, is_first)?;
            }
            self.next_rare_ms = now_ms + RARE_BEATS * self.config.beat_ms;
        }
        for (step, names) in seen {
            self.hand_out(store, step, &names)?;
        }
        Ok(std::mem::take(&mut self.actions))
    }

    /// Hands out what is new of the own share in the folder of a step.
    fn hand_out(&mut self, store: &mut dyn Store, step: u64, names: &[String]) -> Result<()> {
        for name in names.iter().filter(|name| paths::parse_segment(name).is_some()) {
            if self.in_flight.len() >= self.config.max_in_flight {
                break;
            }
            let path = format!("{}/{name}", paths::step(step));
            let is_mine =
                xxh3_64(path.as_bytes()) % u64::from(self.config.num_workers) == u64::from(self.config.index);
            let is_refused = names.binary_search(&paths::quarantine(name)).is_ok();
            if !is_mine || is_refused || self.done.contains(&path) || self.in_flight.contains(&path) {
                continue;
            }
            let Some(bytes) = store.read(&path)? else { continue };
            if self.format.digest(&bytes).is_err() {
                // Either the builder says so and asks for its groups again, or the writer repairs it at its next try.
                continue;
            }
            self.in_flight.insert(path.clone());
            self.actions.push(RewardAction::Score { segment: path, bytes });
        }
        Ok(())
    }

    /// Learns what earlier incarnations and (at first, since the shares may have been others) other workers computed,
    /// and what of it the builder refused.
    fn read_columns(&mut self, store: &mut dyn Store, step: u64, is_first: bool) -> Result<()> {
        let dir = paths::column(&self.config.column, step);
        for file in store.list(&dir)? {
            let path = format!("{dir}/{file}");
            let is_own = paths::parse_column_file(&file).is_some_and(|own| own.index == self.config.index);
            if let Some(refused) = paths::parse_quarantine(&path) {
                self.forget_column(refused);
            } else if (is_own || is_first) && !self.columns.contains_key(&path) {
                let Some(bytes) = store.read(&path)? else { continue };
                let column = self.format.column(&self.config.column, &bytes);
                let segment = column.ok().map(|column| column.segment);
                self.done.extend(segment.clone());
                self.columns.insert(path, segment);
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

    /// Nobody asks any more for what lies behind the front and is not outstanding.
    fn forget_old(&mut self) {
        let oldest = self.front.outstanding.first().copied().unwrap_or(self.front.step);
        let (segment, column) = (paths::step(oldest), paths::column(&self.config.column, oldest));
        self.done.retain(|path| *path >= segment);
        self.columns.retain(|path, _| *path >= column);
    }

    fn seal_scored(&mut self, store: &mut dyn Store) -> Result<()> {
        loop {
            // A failed seal is repeated with the same name and bytes, since it may have been done.
            if let Some((path, bytes)) = &self.writing {
                self.owner.check(store)?;
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
