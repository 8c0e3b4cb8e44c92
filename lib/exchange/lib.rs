//! The store, the owners' state machines and the simulator that tortures them.
//!
//! Every owner is a machine that a driver polls: `poll(&mut store, ..)` reads what others sealed, writes what is
//! due and returns actions (load, generate, score, train); the driver does the real work and hands the outcome
//! back with `on_*` calls. An error with [`Error::is_transient`] leaves the machine as it was: wait and poll again.
//! Everything durable is in the store, so a machine that is dropped at any point is started again with `start`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arrow_format;
mod attempt;
mod control;
mod error;
mod evaluations;
mod holder;
mod idle;
mod lineage;
mod owner;
mod segment;
mod steps;
mod store;

mod replica;
mod reward_worker;
mod step_builder;
mod trainer;

#[cfg(test)]
mod simulator;

pub use arrow_format::ArrowFormat;
pub use attempt::join_attempt;
pub use control::Control;
pub use error::{Error, Result};
pub use holder::refuse_second;
pub use idle::Idle;
pub use lineage::{Lineage, Newest};
pub use owner::{Heartbeat, Owner};
pub use replica::{Assignment, Op, Replica, ReplicaAction, ReplicaConfig};
pub use reward_worker::{RewardAction, RewardWorker, RewardWorkerConfig};
pub use segment::{ColumnDigest, ColumnRow, Format, SampleDigest, SegmentDigest, SegmentHeader};
pub use slime_config::paths::Physical;
pub use step_builder::{
    BufferOrder, BuilderAction, BuilderConfig, DrawnPrompt, FinishedGroup, History, Order, Outcome, Standing,
    StepBuilder, StepPolicy, Verdict,
};
pub use store::{Bytes, Commit, Fill, FsFiles, FsStore, RawFiles, SealedStore, Store};
pub use trainer::{Trainer, TrainerAction, TrainerConfig};
