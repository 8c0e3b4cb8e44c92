//! The TOML schema of a run, layout arithmetic and the Hugging Face config.json.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod algorithm;
mod algorithm_check;
mod batch;
mod buffer;
mod check;
mod cluster;
mod condition;
mod curriculum;
mod data;
mod dynamic_filter;
mod engine_weights;
mod error;
pub mod formulas;
mod fp8;
mod freeze;
pub mod hf_config;
mod load;
mod lora;
mod metrics;
mod parallel;
pub mod paths;
mod pipeline;
mod plan;
mod rollout;
mod routing_replay;
mod run;
mod stage;
mod stage_check;
mod staleness;
mod sync;
mod tensor_box;
mod tensor_part;
mod train;
mod unknown_key;
mod warning;

pub use algorithm::{
    AdvantageEstimator, Algorithm, Checks, Correction, CorrectionWeight, Critic, KlLossType, LossReducer,
    LossType, OldLogProbs, OnFailure, OnNotFinite, PolicyLoss, RatioLevel, Reference, Teacher,
};
pub use batch::Batch;
pub use buffer::{BufferOrder, Partial};
pub use cluster::Cluster;
pub use condition::{Condition, StepMetric, Threshold};
pub use curriculum::Curriculum;
pub use data::{Data, DataSource, Dtype, Eval, Kind, LossMask, Model, Split};
pub use dynamic_filter::{DynamicFilter, FilterRule};
pub use engine_weights::{EngineWeights, WeightForm};
pub use error::{Error, Result};
pub use fp8::{Fp8, Fp8Scaling};
pub use freeze::frozen;
pub use hf_config::{Family, HfConfig, HfConfigError, Moe, QkNormScope, RopeScaling, Scoring};
pub use load::{RunConfig, load, parse};
pub use lora::Lora;
pub use metrics::{Metrics, Warnings};
pub use parallel::{CpCommType, Parallel};
pub use paths::{Physical, RunDir};
pub use pipeline::{Pipeline, PipelineStage};
pub use rollout::{KvCacheDtype, Placement, Reward, Rollout, SandboxTier};
pub use routing_replay::RoutingReplay;
pub use run::{Checkpoint, Device, Order, Run, Watchdog};
pub use stage::Stage;
pub use sync::{Sync, SyncTransport};
pub use tensor_box::{Run as ElementRun, TensorBox};
pub use tensor_part::TensorPart;
pub use train::{Recompute, Schedule, Train};
