//! The `code` reward: runs the code of a response in the sandbox, against inputs and outputs or against tests that call
//! its functions.
//!
//! Where the verdict is made the code never runs. A program's output is compared here, outside; tests of functions run in
//! a process of their own, which calls the solution's in another and compares plain values.

mod extract;
mod judge;
mod language;
mod metadata;
mod programs;
mod tests_apart;
mod worker;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use slime_sandbox::{Options, Sandbox, Standing};

use crate::error::{Error, Result};
use crate::{Row, Verdict, Verifier};
use metadata::Asked;
use worker::Worker;

/// The sandbox of this process; all code rewards share it.
static SANDBOX: OnceLock<Sandbox> = OnceLock::new();

/// Starts the sandbox for rewards of code, and says what was reached; `min` is the name of the least tier.
///
/// Tools call it before they start threads or open devices: the sandbox's broker is forked from what this process is now.
///
/// # Errors
/// A name that is no tier, a machine that allows less than `min`, a start that comes too late.
pub fn start_sandbox(min: &str) -> Result<Standing> {
    start_sandbox_with(Options { min: min.parse()?, ..Options::default() })
}

/// Starts the sandbox within these bounds of isolation, if it was not started before, and says what was reached.
///
/// # Errors
/// As [`start_sandbox`].
pub fn start_sandbox_with(options: Options) -> Result<Standing> {
    Ok(sandbox(options)?.standing().clone())
}

/// How many zygotes were started again because they had ended, in this process.
pub fn num_sandbox_restarts() -> u64 {
    SANDBOX.get().map_or(0, Sandbox::num_restarts)
}

fn sandbox(options: Options) -> Result<&'static Sandbox> {
    if let Some(sandbox) = SANDBOX.get() {
        return Ok(sandbox);
    }
    let started = Sandbox::start(options)?;
    Ok(SANDBOX.get_or_init(|| started))
}

/// What a sample gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scoring {
    /// 1 when everything passes, else 0.
    All,
    /// The share of what passes.
    Rate,
}

/// Workers that wait; all code rewards of this process share them, since each has interpreters that run already.
static WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

/// The code reward.
pub(crate) struct Code {
    scoring: Scoring,
}

impl Code {
    /// A reward over the sandbox of this process.
    pub(crate) fn new(scoring: Scoring) -> Self {
        Self { scoring }
    }

    /// Workers for so many rows, at most one for each core. The sandbox starts now if no tool started it before.
    fn workers(num_rows: usize) -> Result<Vec<Worker>> {
        let sandbox = sandbox(Options::default())?;
        let num_cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let num_workers = num_cores.min(num_rows);
        let mut waiting = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = waiting.len().saturating_sub(num_workers);
        let mut workers = waiting.split_off(kept);
        workers.resize_with(num_workers, || Worker::new(sandbox));
        Ok(workers)
    }
}

impl Verifier for Code {
    fn score(&self, rows: &[Row<'_>]) -> Vec<Result<Verdict>> {
        let mut workers = match Self::workers(rows.len()) {
            Ok(workers) => workers,
            Err(error) => return none_of(rows.len(), error),
        };
        let next = AtomicUsize::new(0);
        let (next, scoring) = (&next, self.scoring);
        let work = |worker: &mut Worker| -> Vec<(usize, Result<Verdict>)> {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(row) = rows.get(at) else { return done };
                let asked = Asked::parse(row.metadata).map_err(bad_row);
                done.push((at, asked.and_then(|asked| worker.judge(row.response, &asked, scoring))));
            }
        };
        let mut done: Vec<(usize, Result<Verdict>)> = std::thread::scope(|scope| {
            let running: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(move || work(worker))).collect();
            let joined = running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.flatten().collect()
        });
        WORKERS.lock().unwrap_or_else(PoisonError::into_inner).append(&mut workers);
        done.sort_by_key(|(row, _)| *row);
        done.into_iter().map(|(_, verdict)| verdict).collect()
    }
}

/// Reads metadata and finds the code of a response in its language, without running it: what `fuzz/` tries.
#[cfg(any(feature = "fuzzing", test))]
pub fn read_code(metadata: &str, response: &str) {
    let asked = Asked::parse(Some(metadata));
    let _ = extract::extract(response, asked.map_or(language::Language::Python, |asked| asked.language));
}

/// A row whose tests cannot be run.
fn bad_row(problem: String) -> Error {
    Error::BadRow { name: "code", problem }
}

/// Every row fails as the first one does.
fn none_of(num_rows: usize, error: Error) -> Vec<Result<Verdict>> {
    let text = error.to_string();
    let rest = (1..num_rows).map(|_| Err(slime_sandbox::Error::Setup { problem: text.clone() }.into()));
    std::iter::once(Err(error)).chain(rest).take(num_rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_fuzzing_found_are_read() {
        for line in include_str!("../tests/fuzz/code.jsonl").lines() {
            let input: String = serde_json::from_str(line).unwrap();
            let (metadata, response) = input.split_once('\t').unwrap_or(("{}", &input));
            read_code(metadata, response);
        }
    }
}
