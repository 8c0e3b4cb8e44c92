//! Reads, scores and writes at the same time; batches leave in the order they came.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use slime_cli::{Failure, exit};
use slime_verifier::{RewardSet, Row, Scored};

use crate::read_samples::{BadRow, Batch, Batching, Input, InputRow, Source};

/// Batches that are scored at once, so that one slow row does not leave cores idle.
const NUM_SCORERS: usize = 3;
/// Batches between reading and writing.
const MAX_IN_FLIGHT: usize = 8;

/// What is known of an input before its rows.
pub struct Opened {
    /// What messages call it.
    pub name: String,
    /// Whether its rows are Arrow's.
    pub is_arrow: bool,
}

/// A row, or what is wrong with it; and its reward, where it could be read.
pub type ScoredRow = (Result<InputRow, BadRow>, Option<slime_verifier::Result<Scored>>);

/// A batch with its rewards, in the order of its rows.
pub struct ScoredBatch {
    pub rows: Vec<ScoredRow>,
    /// Why nothing was read behind them.
    pub end: Option<Failure>,
}

/// Batches in the order they were read.
pub struct Stream {
    order: Receiver<Receiver<ScoredBatch>>,
    scorers: Vec<JoinHandle<()>>,
}

type Work = (Batch, SyncSender<ScoredBatch>);

/// Starts to read and to score. The threads end with the input, or with the process.
pub fn start(path: &str, rewards: &Arc<RewardSet>, batching: Batching) -> Result<(Opened, Stream), Failure> {
    let (opened_sender, opened) = sync_channel(1);
    let (work_sender, work) = sync_channel::<Work>(MAX_IN_FLIGHT);
    let (order_sender, order) = sync_channel(MAX_IN_FLIGHT);
    let path = path.to_owned();
    thread::spawn(move || {
        let mut input = match Input::open(&path) {
            Ok(input) => input,
            Err(failure) => return drop(opened_sender.send(Err(failure))),
        };
        let about = Opened { name: input.name().to_owned(), is_arrow: input.is_arrow() };
        let mut is_wanted = opened_sender.send(Ok(about)).is_ok();
        while is_wanted {
            let batch = input.batch(batching);
            if batch.rows.is_empty() && batch.end.is_none() {
                break;
            }
            let (sender, receiver) = sync_channel(1);
            let is_last = batch.end.is_some();
            is_wanted =
                order_sender.send(receiver).is_ok() && work_sender.send((batch, sender)).is_ok() && !is_last;
        }
    });
    let work = Arc::new(Mutex::new(work));
    let scorer = |_| {
        let (work, rewards) = (Arc::clone(&work), Arc::clone(rewards));
        thread::spawn(move || {
            loop {
                let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((batch, sender)) = next else { break };
                // A writer that ended has told why.
                drop(sender.send(score(&rewards, batch)));
            }
        })
    };
    let scorers = (0..NUM_SCORERS).map(scorer).collect();
    let about = opened.recv().map_err(|_| ended("reader"))??;
    Ok((about, Stream { order, scorers }))
}

impl Stream {
    /// The next batch; `None` behind the last.
    pub fn next(&self) -> Result<Option<ScoredBatch>, Failure> {
        match self.order.recv() {
            Ok(batch) => batch.recv().map(Some).map_err(|_| ended("scorer")),
            Err(_) => Ok(None),
        }
    }

    /// Waits for the scorers behind the last batch, so that programs of theirs end before the tool does.
    pub fn finish(self) -> Result<(), Failure> {
        self.scorers.into_iter().try_for_each(|scorer| scorer.join().map_err(|_| ended("scorer")))
    }
}

fn ended(what: &str) -> Failure {
    Failure::new(exit::BUG, format!("the {what} ended early"))
}

fn score(rewards: &RewardSet, mut batch: Batch) -> ScoredBatch {
    for row in &mut batch.rows {
        if let Ok(InputRow { source: Source::Row(source), token_offsets: offsets @ None, number, .. }) = row {
            match rewards.token_offsets(&source.sample) {
                Ok(found) => *offsets = found,
                Err(error) => *row = Err(BadRow { number: *number, problem: error.to_string() }),
            }
        }
    }
    let rows: Vec<Row<'_>> = batch
        .rows
        .iter()
        .flatten()
        .map(|row| Row {
            prompt: row.prompt.as_deref(),
            response: &row.response,
            label: row.label.as_deref(),
            metadata: row.metadata.as_deref(),
            num_tokens: row.num_tokens,
            token_offsets: row.token_offsets.as_deref(),
            group: row.group,
        })
        .collect();
    let mut scored = rewards.try_score(&rows).into_iter();
    let with_scores = |row: Result<InputRow, BadRow>| {
        let scored = if row.is_ok() { scored.next() } else { None };
        (row, scored)
    };
    ScoredBatch { rows: batch.rows.into_iter().map(with_scores).collect(), end: batch.end }
}
