//! What goes between the HTTP side and the engine's thread: jobs and orders one way, events the other.

use std::path::PathBuf;

use slime_engine::{Completion, NewToken, SamplingParams};
use tokio::sync::{mpsc, oneshot};

use crate::ApiError;

/// A prompt whose samples are wanted.
#[derive(Debug)]
pub struct Job {
    /// The engine's name of it, one for each job of the process.
    pub id: u64,
    /// The client's name of it.
    pub rid: String,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// How to sample; `max_new_tokens` 0 only looks at the prompt.
    pub params: SamplingParams,
    /// Whether log-probs of the prompt are wanted, and how many of the most likely tokens with them.
    pub prompt_log_probs: Option<usize>,
    /// Whether tokens are told one by one.
    pub wants_tokens: bool,
    /// Where events go; closed when the client has gone.
    pub events: mpsc::UnboundedSender<Event>,
}

/// What happened to a job.
#[derive(Debug)]
pub enum Event {
    /// The prompt is computed: one log-prob for each token after the first.
    Prompt {
        /// The log-probs.
        log_probs: Vec<f32>,
        /// The most likely tokens in their places; empty unless they were asked for.
        top: Vec<Vec<(u32, f32)>>,
    },
    /// A token of one of its samples.
    Token(NewToken),
    /// One of its samples ended.
    Done {
        /// The sample.
        completion: Completion,
        /// What the weights that sampled last are called.
        weight_version: String,
    },
    /// There is nothing more to come.
    Failed(ApiError),
}

/// Which jobs an abort means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Those whose name begins so (a batch's jobs have the name of the batch and a number).
    Rid(String),
    /// All.
    All,
}

/// What becomes of running jobs in a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// They end where they are.
    Abort,
    /// They go back to the queue with the tokens they have; the cache is free.
    Retract,
    /// They stay in the cache.
    InPlace,
}

/// Other weights.
#[derive(Debug, Clone)]
pub struct Update {
    /// The weight directory, already checked to lie where weights may.
    pub dir: PathBuf,
    /// What these weights are called; the next number where the client does not say.
    pub weight_version: Option<String>,
    /// Whether running jobs end first.
    pub abort_all: bool,
    /// Whether cached keys and values are computed again under the new weights.
    pub flush_cache: bool,
}

/// An order for the engine's thread.
#[derive(Debug)]
pub enum Command {
    /// Sample.
    Submit(Box<Job>),
    /// The client has gone.
    Cancel(u64),
    /// A client wants jobs to end where they are.
    Abort(Which),
    /// Compute nothing until further notice.
    Pause(PauseMode, oneshot::Sender<()>),
    /// Go on.
    Continue(oneshot::Sender<()>),
    /// Forget cached prompts; answered with the number of jobs that stand in the way.
    Flush(oneshot::Sender<usize>),
    /// Change the weights between two steps.
    Update(Update, oneshot::Sender<Result<String, ApiError>>),
    /// Say that you live.
    Ping(oneshot::Sender<()>),
    /// End.
    Stop,
}
