//! Text generation on one replica: continuous batching over a paged KV cache, with exact tokens and log-probs.
//! It knows no files, no steps and no groups: a request is a prompt and how to sample from it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod block_manager;
mod constraint;
mod drafter;
mod engine;
mod error;
mod forward;
mod model_runner;
mod penalties;
mod radix_cache;
mod ranks;
mod routes;
mod sampler;
mod sampling;
mod scheduler;
mod score;
mod sequence;
mod softmax;
mod stop;
mod top_log_probs;

#[cfg(any(test, feature = "naive-model"))]
pub mod naive_model;

pub use block_manager::{BlockCopy, BlockManager};
pub use constraint::{Constraint, Grammar, GrammarState};
pub use drafter::Drafting;
pub use engine::{Completion, Engine, EngineConfig, KvOnSwap, Load, NewToken, Request, Timing, Usage};
pub use error::{Error, Result};
pub use forward::{Batch, ForwardModel, RowDraw, RunsAhead};
pub use model_runner::ModelRunner;
pub use penalties::Penalties;
pub use ranks::Ranks;
pub use sampler::{KeptIds, Sampled, Scratch, sample};
pub use sampling::{SampleSeed, SamplingParams};
pub use score::Scoring;
pub use stop::{Decode, FinishReason};
