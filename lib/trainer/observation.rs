//! What is looked at while a rollout is trained, and what was seen on this rank.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use slime_metrics::Trace;
use slime_metrics::trace::Span;
use slime_record::SampleId;

use crate::NotFinite;

/// What to look at.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// Where spans go.
    pub trace: Trace,
    /// The training step, for them.
    pub step: u64,
    /// Spans of every micro-batch too.
    pub is_profiled: bool,
    /// Groups, from the first, whose log-probs are kept for every token.
    pub num_logged_groups: usize,
    /// The number of the GPU that computes; the end of a phase is when it has caught up.
    pub gpu: Option<usize>,
}

/// What was seen on this rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Advantages and packing.
    pub data_preprocess: Duration,
    /// Log-probs before the first of several optimizer steps.
    pub log_probs: Duration,
    /// Log-probs of the reference.
    pub ref_log_probs: Duration,
    /// Log-probs of the teacher.
    pub teacher_log_probs: Duration,
    /// The critic's values before its update.
    pub values: Duration,
    /// Advantages from what is fixed.
    pub advantages: Duration,
    /// All optimizer steps of the critic.
    pub critic_train: Duration,
    /// The reference becoming the policy.
    pub ref_model_update: Duration,
    /// All optimizer steps.
    pub actor_train: Duration,
    /// Of it, the time in collectives, where ranks wait for each other; 0 in a world of one.
    pub collectives: Duration,
    /// Of all steps, the time in which this rank's stage waited for what another one computes; 0 in a pipeline of one.
    pub stage_wait: Duration,
    /// Floating-point operations of one forward pass over all of this rank's micro-batches.
    pub forward_flops: f64,
    /// Bytes in use on this rank's GPU after the last optimizer step, those of other processes among them.
    pub gpu_bytes: Option<usize>,
    /// Optimizer steps that were left out, the critic's among them.
    pub skipped: Vec<NotFinite>,
    /// Log-probs of the logged samples that this rank trained.
    pub logged: BTreeMap<SampleId, LoggedSample>,
}

/// The log-probs of one sample before the rollout's first update.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedSample {
    /// xxh3-64 of its tokens.
    pub tokens_hash: u64,
    /// One for each response token; NaN where it is not trained.
    pub log_probs: Vec<f32>,
}

impl Observation {
    /// The time since `began`, and a span over it.
    pub(crate) fn phase(&self, name: &str, began: Instant) -> Duration {
        self.catch_up();
        self.trace.step_span(name, "trainer", self.step, began);
        began.elapsed()
    }

    /// Waits until the GPU has done what it was given.
    pub(crate) fn catch_up(&self) {
        if let Some(gpu) = self.gpu {
            tch::Cuda::synchronize(gpu as i64);
        }
    }

    /// A finer span, where they are wanted.
    pub(crate) fn detail(&self, name: &str, began: Instant, num_tokens: usize) {
        if self.is_profiled {
            self.catch_up();
            let (step, ended) = (self.step, Instant::now());
            let args = json!({ "step": step, "tokens": num_tokens });
            self.trace.span(&Span { name, category: "trainer", lane: 0, began, ended, args });
        }
    }
}
