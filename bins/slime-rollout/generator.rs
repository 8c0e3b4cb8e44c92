//! Where samples are drawn: by an engine of this process, or by servers elsewhere.

use std::path::Path;

use slime_cli::Failure;
use slime_engine::{Completion, Engine, KvOnSwap, Load, ModelRunner, Request, Timing, Usage};
use slime_record::LogProbSpace;

use crate::failure;

/// Requests in, completions out.
pub trait Generator {
    /// Queues a request.
    ///
    /// # Errors
    /// What can never be generated is refused.
    fn submit(&mut self, request: Request) -> Result<(), Failure>;

    /// Works or waits for a moment, and returns the samples that ended.
    ///
    /// # Errors
    /// Nobody can generate any more.
    fn step(&mut self) -> Result<Vec<Completion>, Failure>;

    /// Ends the samples of a request where they are, and returns them as far as they are known here.
    fn abort(&mut self, id: u64) -> Vec<Completion>;

    /// Samples that were asked for and have not ended.
    fn num_unfinished(&self) -> usize;

    /// Samples beyond which no more need to be asked for.
    fn num_wanted(&self) -> usize;

    /// Tokens a prompt and its response may have together.
    fn context_len(&self) -> usize;

    /// What is held at the moment.
    fn load(&self) -> Load;

    /// Counters since the start.
    fn usage(&self) -> Usage;

    /// The policy version that new tokens carry.
    fn version(&self) -> u64;

    /// Puts the weights of `dir`, which are policy version `version`, in place of the old ones.
    ///
    /// # Errors
    /// They cannot be loaded.
    fn reload(&mut self, dir: &Path, version: u64) -> Result<(), Failure>;

    /// From now on the times of finished samples are kept.
    fn keep_timings(&mut self);

    /// The times of the samples that finished since the last call.
    fn take_timings(&mut self) -> Vec<Timing>;

    /// Which distribution log-probs are of.
    fn log_prob_space(&self) -> LogProbSpace;
}

/// The engine of this process.
pub struct Local {
    /// The engine.
    pub engine: Engine<ModelRunner>,
    /// Sequences it computes at once.
    pub max_in_flight: usize,
    /// The newest step that a request was for.
    pub newest_step: u64,
}

impl Generator for Local {
    fn submit(&mut self, request: Request) -> Result<(), Failure> {
        let step = request.params.seed.step;
        if step > self.newest_step {
            // A run that was stopped between steps begins the next one with an empty cache, so others do too.
            self.engine.forget_prefixes();
            self.newest_step = step;
        }
        self.engine.submit(request).map_err(failure!())
    }

    fn step(&mut self) -> Result<Vec<Completion>, Failure> {
        self.engine.step().map_err(failure!())
    }

    fn abort(&mut self, id: u64) -> Vec<Completion> {
        self.engine.abort(id)
    }

    fn num_unfinished(&self) -> usize {
        self.engine.num_unfinished()
    }

    fn num_wanted(&self) -> usize {
        2 * self.max_in_flight
    }

    fn context_len(&self) -> usize {
        self.engine.context_len()
    }

    fn load(&self) -> Load {
        self.engine.load()
    }

    fn usage(&self) -> Usage {
        self.engine.usage()
    }

    fn version(&self) -> u64 {
        self.engine.version()
    }

    fn reload(&mut self, dir: &Path, version: u64) -> Result<(), Failure> {
        let reload = |runner: &mut ModelRunner| runner.reload(dir);
        self.engine.swap_weights(version, KvOnSwap::Recompute, reload).map_err(failure!())
    }

    fn keep_timings(&mut self) {
        self.engine.keep_timings();
    }

    fn take_timings(&mut self) -> Vec<Timing> {
        self.engine.take_timings()
    }

    fn log_prob_space(&self) -> LogProbSpace {
        LogProbSpace::AfterTruncation
    }
}
