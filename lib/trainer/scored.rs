//! What the trainer learns from: samples, with what others found out about them.

use serde::{Deserialize, Serialize};
use slime_config::Moe;
use slime_model::Routes;
use slime_record::{Sample, SampleId};

use crate::{Error, Result};

/// A sample with its reward and what else the configured formulas read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// The sample.
    pub sample: Sample,
    /// Its reward; recorded answers have none.
    pub reward: Option<f32>,
    /// Rewards of single response tokens (process rewards), one for each; empty where there are none.
    pub token_rewards: Vec<f32>,
    /// The teacher's log-prob of each response token; empty where a teacher is at hand or none is wanted.
    pub teacher_log_probs: Vec<f32>,
    /// By how much the first answer of a pair is known to be better.
    pub margin: Option<f32>,
}

impl Scored {
    /// A sample with its reward alone.
    pub fn new(sample: Sample, reward: f32) -> Self {
        Self { sample, reward: Some(reward), ..Self::default() }
    }

    /// The sample's identity.
    pub fn id(&self) -> SampleId {
        self.sample.id()
    }

    /// Trained response tokens.
    pub fn num_trained(&self) -> usize {
        self.sample.loss_mask.iter().filter(|mask| **mask != 0).count()
    }

    /// An error about a field of this sample.
    pub(crate) fn wrong(
        &self,
        field: &'static str,
        expected: impl Into<String>,
        got: impl std::fmt::Display,
    ) -> Error {
        Error::Sample { id: self.id(), field, expected: expected.into(), got: got.to_string() }
    }

    /// Checks that the sample says where each of its tokens went, in the layers of the policy.
    pub(crate) fn check_routes(&self, moe: &Moe) -> Result<()> {
        let (sample, field) = (&self.sample, "routed_experts");
        if sample.routed_experts.is_empty() && self.num_trained() == 0 {
            return Ok(());
        }
        let (layers, top_k) = (moe.layers.len(), moe.top_k);
        let rows = sample.tokens.len().saturating_sub(1);
        if sample.routed_experts.len() != rows * layers * top_k {
            let expected = format!(
                "{rows} tokens x {layers} layers x {top_k} experts, as algorithm.routing_replay is \"rollout\""
            );
            return Err(self.wrong(field, expected, sample.routed_experts.len()));
        }
        for experts in sample.routed_experts.chunks_exact(top_k) {
            let is_known = |id: &u16| usize::from(*id) < moe.num_experts;
            let is_recorded = experts.first().is_some_and(|id| *id != Routes::NOT_RECORDED);
            if let Some(id) = experts.iter().find(|id| is_recorded && !is_known(id)) {
                return Err(self.wrong(field, format!("experts below {}", moe.num_experts), id));
            }
        }
        Ok(())
    }

    /// Checks lengths, and that every number about a trained token is one.
    pub(crate) fn check(&self, vocab_size: usize, truncates: bool) -> Result<()> {
        let sample = &self.sample;
        for (field, ids) in [("tokens", &sample.tokens), ("kept_token_ids", &sample.kept_token_ids)] {
            if let Some(token) = ids.iter().find(|token| **token as usize >= vocab_size) {
                return Err(self.wrong(field, format!("ids below {vocab_size}"), token));
            }
        }
        let num_kept: usize = sample.kept_lens.iter().map(|len| *len as usize).sum();
        if num_kept != sample.kept_token_ids.len() {
            return Err(self.wrong("kept_token_ids", format!("{num_kept} ids"), sample.kept_token_ids.len()));
        }
        if truncates && self.num_trained() > 0 && sample.kept_lens.is_empty() {
            let expected = "how many ids each token was drawn from, as rollout.top_p, top_k or min_p is set";
            return Err(self.wrong("kept_lens", expected, "none"));
        }
        if !sample.kept_lens.is_empty() && sample.kept_lens.len() != sample.response_len() {
            let expected = format!("{} values or none", sample.response_len());
            return Err(self.wrong("kept_lens", expected, sample.kept_lens.len()));
        }
        if let Some(reward) = self.reward.filter(|reward| !reward.is_finite()) {
            return Err(self.wrong("reward", "a finite number", reward));
        }
        if !(sample.weight.is_finite() && sample.weight >= 0.0) {
            return Err(self.wrong("weight", "a finite number of at least 0", sample.weight));
        }
        let response_len = sample.response_len();
        for (field, values) in [
            ("rollout_log_probs", &sample.rollout_log_probs),
            ("token_rewards", &self.token_rewards),
            ("teacher_log_probs", &self.teacher_log_probs),
        ] {
            if !values.is_empty() && values.len() != response_len {
                return Err(self.wrong(field, format!("{response_len} values or none"), values.len()));
            }
            let trained = values.iter().zip(&sample.loss_mask).filter(|(_, mask)| **mask != 0);
            if let Some(value) = trained.map(|(value, _)| value).find(|value| !value.is_finite()) {
                return Err(self.wrong(field, "finite numbers", value));
            }
        }
        Ok(())
    }
}
