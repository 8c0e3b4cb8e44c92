//! The engine's thread: takes orders between steps, computes, and tells each job what happened to it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use slime_engine::{
    Completion, Drafting, Engine, Error, FinishReason, KeptIds, KvOnSwap, Load, Request, Result,
    SamplingParams, Scoring,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::job::{Command, Event, Job, PauseMode, Update, Which};
use crate::served_model::ServedModel;
use crate::{ApiError, Status};

/// Time between two looks at the orders while there is nothing to compute.
const IDLE: Duration = Duration::from_millis(100);
/// Steps for which a prompt that is scored waits for blocks before running samples give theirs back.
const SCORING_PATIENCE: u32 = 256;

/// A job the engine has taken.
struct Taken {
    rid: String,
    tokens: Vec<u32>,
    params: SamplingParams,
    wants_tokens: bool,
    events: UnboundedSender<Event>,
    /// Samples that have not ended.
    num_left: u32,
}

/// The owner of the engine.
pub struct Driver<M> {
    engine: Engine<M>,
    orders: Receiver<Command>,
    status: Arc<Status>,
    jobs: HashMap<u64, Taken>,
    /// Prompts whose log-probs are wanted, in the order they came; the first may be on its way.
    scorings: std::collections::VecDeque<Scoring>,
    /// The first of them has its blocks.
    is_scoring: bool,
    /// Steps for which the first of them has waited for blocks.
    num_waited: u32,
    /// Where the weights come from.
    dir: PathBuf,
}

impl<M: ServedModel> Driver<M> {
    /// Drives `engine`, whose weights come from `dir`.
    pub fn new(mut engine: Engine<M>, dir: PathBuf, orders: Receiver<Command>, status: Arc<Status>) -> Self {
        engine.keep_tokens();
        let (jobs, scorings) = (HashMap::new(), std::collections::VecDeque::new());
        Self { engine, orders, status, jobs, scorings, is_scoring: false, num_waited: 0, dir }
    }

    /// Works until it is told to stop or nobody can give orders any more.
    ///
    /// # Errors
    /// The model fails: every job has been told.
    pub fn run(mut self) -> Result<()> {
        let result = self.work();
        if let Err(error) = &result {
            let told = ApiError::internal(format!("the engine failed: {error}"));
            self.jobs.drain().for_each(|(_, job)| drop(job.events.send(Event::Failed(told.clone()))));
        }
        self.status.is_dead.store(true, Ordering::Release);
        result
    }

    fn work(&mut self) -> Result<()> {
        loop {
            let can_compute = !self.is_paused() && (!self.engine.is_idle() || !self.scorings.is_empty());
            let order = if can_compute {
                self.orders.try_recv()
            } else {
                self.orders.recv_timeout(IDLE).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            };
            match order {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
                Ok(order) => {
                    self.obey(order)?;
                    self.publish();
                }
                Err(TryRecvError::Empty) if can_compute => {
                    self.compute()?;
                    self.status.num_steps.fetch_add(1, Ordering::Relaxed);
                    self.publish();
                }
                Err(TryRecvError::Empty) => {}
            }
        }
    }

    fn is_paused(&self) -> bool {
        self.status.is_paused.load(Ordering::Relaxed)
    }

    fn publish(&self) {
        let load = self.engine.load();
        let load = Load { num_waiting: load.num_waiting + self.scorings.len(), ..load };
        self.status.set_load(load, self.engine.usage());
    }

    fn obey(&mut self, order: Command) -> Result<()> {
        match order {
            Command::Submit(job) => self.submit(*job),
            Command::Cancel(id) => {
                let num = self.end(id);
                self.status.num_aborted.fetch_add(num, Ordering::Relaxed);
            }
            Command::Abort(which) => self.abort(&which),
            Command::Pause(mode, answer) => {
                match mode {
                    PauseMode::Abort => self.abort(&Which::All),
                    PauseMode::Retract => self.engine.retract(),
                    PauseMode::InPlace => {}
                }
                self.status.is_paused.store(true, Ordering::Relaxed);
                let _ = answer.send(());
            }
            Command::Continue(answer) => {
                self.status.is_paused.store(false, Ordering::Relaxed);
                let _ = answer.send(());
            }
            Command::Flush(answer) => {
                if self.jobs.is_empty() {
                    self.engine.forget_prefixes();
                }
                let _ = answer.send(self.jobs.len());
            }
            Command::Update(update, answer) => {
                let result = self.update(update)?;
                let _ = answer.send(result);
            }
            Command::Ping(answer) => {
                let _ = answer.send(());
            }
            Command::Stop => {}
        }
        Ok(())
    }

    fn submit(&mut self, job: Job) {
        let Job { id, rid, tokens, params, prompt_log_probs, wants_tokens, events } = job;
        let num_left = params.n;
        let taken = Taken { rid, tokens, params, wants_tokens, events, num_left };
        let is_empty = prompt_log_probs.is_none() && taken.params.max_new_tokens == 0;
        let checked = if is_empty || prompt_log_probs.is_some() {
            let (tokens, num_top) = (taken.tokens.clone(), prompt_log_probs.unwrap_or(0));
            let scoring = Scoring::new(id, tokens, taken.params.temperature, num_top);
            let checked = self.engine.check_scoring(&scoring);
            if checked.is_ok() && !is_empty {
                self.scorings.push_back(scoring);
            }
            checked
        } else {
            self.generate(id, &taken)
        };
        if let Err(error) = checked {
            let _ = taken.events.send(Event::Failed(ApiError::bad_request(error.to_string())));
            return;
        }
        self.jobs.insert(id, taken);
        if is_empty {
            self.finish_empty(id, FinishReason::Length);
        }
    }

    fn generate(&mut self, id: u64, job: &Taken) -> Result<()> {
        match job.params.max_new_tokens {
            0 => Ok(()),
            _ => self.engine.submit(Request { id, tokens: job.tokens.clone(), params: job.params.clone() }),
        }
    }

    /// Ends all samples of a job that has none in the engine.
    fn finish_empty(&mut self, id: u64, finish_reason: FinishReason) {
        let Some(job) = self.jobs.remove(&id) else { return };
        for index in 0..job.num_left {
            let completion = Completion {
                id,
                index,
                tokens: Vec::new(),
                log_probs: Vec::new(),
                kept: KeptIds::default(),
                routed_experts: Vec::new(),
                text: String::new(),
                finish_reason,
                weight_versions: Vec::new(),
                num_cached: 0,
                drafting: Drafting::default(),
            };
            let weight_version = self.status.weight_version();
            let _ = job.events.send(Event::Done { completion, weight_version });
        }
    }

    /// One step of the engine and one chunk of a prompt that is scored.
    fn compute(&mut self) -> Result<()> {
        if !self.engine.is_idle() {
            let result = self.engine.step();
            self.tell_tokens();
            match result {
                Ok(completions) => completions.into_iter().for_each(|completion| self.tell_done(completion)),
                Err(error @ Error::NonFiniteLogits { id, .. }) => self.fail(id, &error),
                Err(error) => return Err(error),
            }
        }
        self.score()
    }

    fn score(&mut self) -> Result<()> {
        let Some(scoring) = self.scorings.front_mut() else { return Ok(()) };
        if !self.is_scoring {
            if self.num_waited >= SCORING_PATIENCE {
                self.engine.retract();
            }
            self.is_scoring = self.engine.begin_scoring(scoring);
            self.num_waited = if self.is_scoring { 0 } else { self.num_waited + 1 };
            if !self.is_scoring {
                return Ok(());
            }
        }
        let id = scoring.id();
        match self.engine.continue_scoring(scoring) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error @ Error::NonFiniteLogits { .. }) => {
                self.fail(id, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let Some(scoring) = self.take_scoring(0) else { return Ok(()) };
        let Some(job) = self.jobs.remove(&id) else { return Ok(()) };
        let (log_probs, top) = (scoring.log_probs().to_vec(), scoring.top().to_vec());
        let _ = job.events.send(Event::Prompt { log_probs, top });
        let submitted = self.generate(id, &job);
        let is_empty = job.params.max_new_tokens == 0;
        self.jobs.insert(id, job);
        if let Err(error) = submitted {
            self.fail_with(id, ApiError::bad_request(error.to_string()));
        } else if is_empty {
            self.finish_empty(id, FinishReason::Length);
        }
        Ok(())
    }

    fn take_scoring(&mut self, position: usize) -> Option<Scoring> {
        let mut scoring = self.scorings.remove(position)?;
        if position == 0 {
            self.num_waited = 0;
        }
        if position == 0 && std::mem::take(&mut self.is_scoring) {
            self.engine.end_scoring(&mut scoring);
        }
        Some(scoring)
    }

    fn tell_tokens(&mut self) {
        let mut gone = Vec::new();
        for token in self.engine.take_tokens() {
            let Some(job) = self.jobs.get(&token.id) else { continue };
            let id = token.id;
            if job.wants_tokens && job.events.send(Event::Token(token)).is_err() {
                gone.push(id);
            }
        }
        for id in gone {
            self.end(id);
        }
    }

    fn tell_done(&mut self, completion: Completion) {
        let id = completion.id;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.num_left -= 1;
        let is_last = job.num_left == 0;
        let weight_version = self.status.weight_version();
        let _ = job.events.send(Event::Done { completion, weight_version });
        if is_last {
            self.jobs.remove(&id);
        }
    }

    /// Takes a job out of the engine; returns how many of its samples had not ended.
    fn end(&mut self, id: u64) -> u64 {
        if let Some(position) = self.scorings.iter().position(|scoring| scoring.id() == id) {
            self.take_scoring(position);
        }
        self.engine.abort(id);
        self.jobs.remove(&id).map_or(0, |job| u64::from(job.num_left))
    }

    fn abort(&mut self, which: &Which) {
        let is_meant = |job: &Taken| match which {
            Which::All => true,
            Which::Rid(rid) => job.rid.starts_with(rid.as_str()),
        };
        let ids: Vec<u64> = self.jobs.iter().filter(|(_, job)| is_meant(job)).map(|(&id, _)| id).collect();
        for id in ids {
            if let Some(position) = self.scorings.iter().position(|scoring| scoring.id() == id) {
                self.take_scoring(position);
                self.finish_empty(id, FinishReason::Abort);
                continue;
            }
            let ended = self.engine.abort(id);
            self.status.num_aborted.fetch_add(ended.len() as u64, Ordering::Relaxed);
            for completion in ended {
                self.tell_done(completion);
            }
        }
    }

    fn fail(&mut self, id: u64, error: &Error) {
        tracing::error!("{error}");
        self.fail_with(id, ApiError::internal(error.to_string()));
    }

    fn fail_with(&mut self, id: u64, error: ApiError) {
        if let Some(job) = self.jobs.get(&id) {
            let _ = job.events.send(Event::Failed(error));
        }
        self.end(id);
    }

    /// Changes the weights; when the new ones cannot be loaded the old ones are loaded again.
    fn update(&mut self, update: Update) -> Result<Result<String, ApiError>> {
        let Update { dir, weight_version, abort_all, flush_cache } = update;
        if abort_all {
            self.abort(&Which::All);
        }
        let number = weight_version.as_deref().and_then(|name| name.parse::<u64>().ok());
        let number = number.unwrap_or(self.engine.version() + 1);
        let name = weight_version.unwrap_or_else(|| number.to_string());
        let kv = if flush_cache { KvOnSwap::Recompute } else { KvOnSwap::Keep };
        let before = &self.dir;
        let swapped = self.engine.swap_weights(number, kv, |model| {
            model.load(&dir).map_err(|error| Box::new((error, model.load(before))))
        });
        match swapped {
            Ok(()) => {
                tracing::info!("weights {name} from {}", dir.display());
                self.dir = dir;
                self.status.set_weight_version(&name);
                self.scorings.iter_mut().for_each(Scoring::restart);
                Ok(Ok(name))
            }
            Err(failed) => match *failed {
                (error, Ok(())) => {
                    tracing::warn!("{error}; the weights stay as they are");
                    Ok(Err(ApiError::bad_request(format!("{error}; the weights stay as they are"))))
                }
                (error, Err(again)) => {
                    tracing::error!("{error}; and the weights before it cannot be loaded again: {again}");
                    Err(again)
                }
            },
        }
    }
}
