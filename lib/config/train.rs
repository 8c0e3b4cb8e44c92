//! `[train]`, `[parallel]`, `[algorithm]`, `[reference]`: how the policy is updated.

use serde::{Deserialize, Serialize};

/// The learning rate over optimizer steps, after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// `lr` throughout.
    Constant,
    /// Straight from `lr` to `min_lr`.
    Linear,
    /// Half a cosine from `lr` to `min_lr`.
    Cosine,
}

/// `[train]`: the optimizer and its batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Samples of one optimizer step; part of the batch identity.
    pub global_batch_size: Option<u32>,
    /// Optimizer steps of one rollout; part of the batch identity.
    pub num_steps_per_rollout: Option<u32>,
    /// Tokens of one packed micro-batch on one rank (a longer group is a micro-batch by itself).
    pub max_tokens_per_gpu: u32,
    /// Peak learning rate.
    pub lr: f64,
    /// `constant`, `linear` or `cosine`.
    pub schedule: Schedule,
    /// Optimizer steps of linear warm-up from 0.
    pub warmup_steps: u64,
    /// The learning rate at the end of a decaying schedule.
    pub min_lr: f64,
    /// Decoupled weight decay of `AdamW`.
    pub weight_decay: f64,
    /// First moment's decay.
    pub adam_beta1: f64,
    /// Second moment's decay.
    pub adam_beta2: f64,
    /// Added to the root of the second moment.
    pub adam_eps: f64,
    /// Largest global gradient norm; 0 does not clip.
    pub clip_grad: f64,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            global_batch_size: None,
            num_steps_per_rollout: None,
            max_tokens_per_gpu: 8192,
            lr: 1e-6,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            min_lr: 0.0,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: 1.0,
        }
    }
}

/// `[parallel]`: how ranks share the work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parallel {
    /// Data-parallel ranks of the trainer; the default is the launcher's world.
    pub dp: Option<u32>,
}

/// How the advantage of a sample is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// Reward minus the group's mean, over its standard deviation (`DeepSeekMath`, arXiv 2402.03300, section 4.1).
    Grpo,
}

/// An estimator of KL(policy || reference) from samples (Schulman, "Approximating KL divergence").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlLossType {
    /// The log ratio: unbiased, high variance.
    K1,
    /// Half the squared log ratio: biased, low variance.
    K2,
    /// exp(-r) - 1 + r: unbiased, low variance.
    K3,
    /// k3 clamped to [-10, 10], as in slime and verl.
    LowVarKl,
}

/// The denominator of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReducer {
    /// The mean over samples of each sample's mean over its trained tokens.
    SampleMean,
    /// The mean over all trained tokens of the global batch.
    TokenMean,
}

/// `[algorithm]`: the loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Algorithm {
    /// `grpo`.
    pub advantage_estimator: AdvantageEstimator,
    /// Divide by the group's standard deviation (off: Dr. GRPO, arXiv 2503.20783).
    pub grpo_std_normalization: bool,
    /// The ratio is clipped to 1 - `eps_clip` below.
    pub eps_clip: f64,
    /// The ratio is clipped to 1 + `eps_clip_high` above; the default is `eps_clip`.
    pub eps_clip_high: Option<f64>,
    /// Dual clip for negative advantages (arXiv 1912.09729), above 1; off when missing.
    pub eps_clip_c: Option<f64>,
    /// Weight of the KL term in the loss; 0 needs no reference.
    pub kl_loss_coef: f64,
    /// `k1`, `k2`, `k3` or `low_var_kl`.
    pub kl_loss_type: KlLossType,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// `sample_mean` or `token_mean`.
    pub loss_reducer: LossReducer,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            advantage_estimator: AdvantageEstimator::Grpo,
            grpo_std_normalization: true,
            eps_clip: 0.2,
            eps_clip_high: None,
            eps_clip_c: None,
            kl_loss_coef: 0.0,
            kl_loss_type: KlLossType::K3,
            entropy_coef: 0.0,
            loss_reducer: LossReducer::SampleMean,
        }
    }
}

/// `[reference]`: the frozen policy of the KL term.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reference {
    /// Its weight directory; the default is `model.path`.
    pub path: Option<String>,
}
