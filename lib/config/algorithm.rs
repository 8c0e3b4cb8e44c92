//! `[algorithm]`, `[reference]`, `[critic]`, `[teacher]`, `[checks]`: what is learned from a sample.

use serde::{Deserialize, Serialize};

use crate::routing_replay::RoutingReplay;

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// The policy, from rewards.
    #[default]
    Policy,
    /// The policy, to say what the samples say (supervised fine-tuning).
    Sft,
    /// The policy, to prefer the first sample of each pair to the second (DPO).
    Dpo,
    /// A score that puts the first sample of each pair above the second (Bradley-Terry).
    RewardModel,
}

/// How the advantage of a token is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// Reward minus the group's mean, over its standard deviation.
    #[default]
    Grpo,
    /// Reward minus the group's mean; the loss is divided by a constant length.
    DrGrpo,
    /// As `grpo`, with one ratio for each sequence.
    Gspo,
    /// As `grpo`, with a clipped weight on the log-prob.
    Cispo,
    /// Reward minus the mean of the group's other samples.
    Rloo,
    /// The discounted reward with the KL penalty of each token.
    ReinforcePlusPlus,
    /// Reward minus the group's mean and the KL penalty of each token.
    ReinforcePlusPlusBaseline,
    /// Generalised advantages under a critic.
    Ppo,
    /// The teacher's log-prob minus the policy's.
    Distillation,
}

impl AdvantageEstimator {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpo => "grpo",
            Self::DrGrpo => "dr_grpo",
            Self::Gspo => "gspo",
            Self::Cispo => "cispo",
            Self::Rloo => "rloo",
            Self::ReinforcePlusPlus => "reinforce_plus_plus",
            Self::ReinforcePlusPlusBaseline => "reinforce_plus_plus_baseline",
            Self::Ppo => "ppo",
            Self::Distillation => "distillation",
        }
    }

    /// Whether a sample is compared with the others of its group, so that a group of one says nothing.
    pub fn compares_group(self) -> bool {
        !matches!(self, Self::ReinforcePlusPlus | Self::Ppo | Self::Distillation)
    }

    /// Whether `grpo_std_normalization` means it.
    pub fn divides_by_std(self) -> bool {
        matches!(self, Self::Grpo | Self::Gspo | Self::Cispo)
    }

    /// Whether tokens have rewards of their own: a KL penalty is one.
    pub fn reads_token_kl(self) -> bool {
        matches!(self, Self::ReinforcePlusPlus | Self::ReinforcePlusPlusBaseline | Self::Ppo)
    }

    /// Whether process rewards have a meaning.
    pub fn reads_token_rewards(self) -> bool {
        matches!(self, Self::Grpo | Self::DrGrpo | Self::Cispo | Self::ReinforcePlusPlus | Self::Ppo)
    }
}

/// The objective of a token under its advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// The clipped ratio of each token.
    PpoClip,
    /// The clipped geometric mean of a sequence's ratios.
    Gspo,
    /// The log-prob under a clipped ratio that has no gradient.
    Cispo,
}

/// An estimate of KL(policy || reference).
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
    /// The exact divergence over the whole vocabulary.
    Full,
}

/// The denominator of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReducer {
    /// The mean over samples of each sample's mean over its trained tokens.
    SampleMean,
    /// The mean over all trained tokens of the global batch.
    TokenMean,
    /// The mean over samples of each sample's sum over its trained tokens, over `algorithm.loss_len`.
    ConstantLength,
    /// The mean over episodes of the mean over all trained tokens of an episode's samples.
    EpisodeMean,
}

/// Where the log-probs come from that the ratio compares with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldLogProbs {
    /// The trainer's own, before the rollout's first update.
    #[default]
    Recomputed,
    /// Those of generation.
    Rollout,
}

/// What is done with the ratio of training to generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionWeight {
    /// No weight.
    #[default]
    None,
    /// At most `high` (truncated importance sampling; without `high` decoupled PPO).
    Truncate,
    /// Within `low` and `high`.
    Clip,
    /// 0 outside `low` and `high` (`IcePop`).
    Mask,
}

/// Over what a ratio of training to generation is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RatioLevel {
    /// Each token.
    #[default]
    Token,
    /// The product over a sequence's trained tokens.
    Sequence,
    /// Its geometric mean.
    Geometric,
}

/// `[algorithm.correction]`: samples that were drawn from another distribution than the trained one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Correction {
    /// `none`, `truncate`, `clip` or `mask`.
    pub weight: CorrectionWeight,
    /// `token`, `sequence` or `geometric`: what the weight is a ratio of.
    pub level: RatioLevel,
    /// Least weight of `clip` and `mask`; the default is 1 / `high`.
    pub low: Option<f64>,
    /// Greatest weight; `truncate` without it does not bound.
    pub high: Option<f64>,
    /// Divides the weights by their mean over the global batch.
    pub normalize: bool,
    /// Drops what lies outside `reject_low` and `reject_high`: `token`, `sequence` or `geometric`; off when missing.
    pub reject: Option<RatioLevel>,
    /// Least ratio that is kept; the default is 1 / `reject_high`.
    pub reject_low: Option<f64>,
    /// Greatest ratio that is kept.
    pub reject_high: Option<f64>,
    /// Drops a sequence of which one token has a smaller ratio; off when missing.
    pub veto: Option<f64>,
    /// Drops tokens of negative advantage in sequences whose mean log ratio to the old policy is above this
    /// (off-policy sequence masking); off when missing.
    pub opsm_delta: Option<f64>,
}

impl Correction {
    /// Whether log-probs of generation are read.
    pub fn reads_rollout(&self) -> bool {
        self.weight != CorrectionWeight::None || self.rejects()
    }

    /// Whether rows may be dropped for their ratio of training to generation.
    pub fn rejects(&self) -> bool {
        self.reject.is_some() || self.veto.is_some()
    }
}

/// `[algorithm]`: advantages and loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Algorithm {
    /// `policy`, `sft`, `dpo` or `reward_model`.
    pub loss: LossType,
    /// `grpo`, `dr_grpo`, `gspo`, `cispo`, `rloo`, `reinforce_plus_plus`, `reinforce_plus_plus_baseline`, `ppo` or
    /// `distillation`.
    pub advantage_estimator: AdvantageEstimator,
    /// Divide by the group's standard deviation (`grpo`, `gspo`, `cispo`).
    pub grpo_std_normalization: bool,
    /// Whiten the advantages over all trained tokens of the rollout, on all ranks.
    pub normalize_advantages: bool,
    /// Discount of a later reward (`ppo`, `reinforce_plus_plus`).
    pub gamma: f64,
    /// Decay of later temporal differences (`ppo`).
    pub lambda: f64,
    /// Weight of the KL penalty in each token's reward; 0 measures only, missing needs no reference.
    pub kl_coef: Option<f64>,
    /// `ppo_clip`, `gspo` or `cispo`; the default follows the estimator.
    pub policy_loss: Option<PolicyLoss>,
    /// The ratio is clipped to 1 - `eps_clip` below.
    pub eps_clip: f64,
    /// The ratio is clipped to 1 + `eps_clip_high` above; the default is `eps_clip`.
    pub eps_clip_high: Option<f64>,
    /// Dual clip for negative advantages (arXiv 1912.09729), above 1; off when missing.
    pub eps_clip_c: Option<f64>,
    /// Weight of the KL term in the loss; 0 measures only, missing needs no reference.
    pub kl_loss_coef: Option<f64>,
    /// `k1`, `k2`, `k3`, `low_var_kl` or `full` (in the loss only).
    pub kl_loss_type: KlLossType,
    /// Multiply the estimate in the loss by the ratio to the old policy, with gradient.
    pub unbiased_kl: bool,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// `sample_mean`, `token_mean`, `constant_length` or `episode_mean`; the default is `sample_mean`, for `dr_grpo`
    /// `constant_length`.
    pub loss_reducer: Option<LossReducer>,
    /// The length of `constant_length`, in tokens; the default is `rollout.max_response_len`.
    pub loss_len: Option<u32>,
    /// `recomputed` or `rollout`.
    pub old_log_probs: OldLogProbs,
    /// `none`, `recomputed` or `rollout`: whose choice of experts the policy's passes repeat.
    pub routing_replay: RoutingReplay,
    /// `[algorithm.correction]`
    pub correction: Correction,
    /// How far `dpo` may lead away from the reference: the inverse temperature of the preference.
    pub dpo_beta: f64,
    /// The share of pairs that `dpo` takes for ordered wrongly (conservative DPO).
    pub dpo_label_smoothing: f64,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            loss: LossType::Policy,
            advantage_estimator: AdvantageEstimator::Grpo,
            grpo_std_normalization: true,
            normalize_advantages: false,
            gamma: 1.0,
            lambda: 1.0,
            kl_coef: None,
            policy_loss: None,
            eps_clip: 0.2,
            eps_clip_high: None,
            eps_clip_c: None,
            kl_loss_coef: None,
            kl_loss_type: KlLossType::K3,
            unbiased_kl: false,
            entropy_coef: 0.0,
            loss_reducer: None,
            loss_len: None,
            old_log_probs: OldLogProbs::Recomputed,
            routing_replay: RoutingReplay::None,
            correction: Correction::default(),
            dpo_beta: 0.1,
            dpo_label_smoothing: 0.0,
        }
    }
}

impl Algorithm {
    /// The objective in force.
    pub fn policy_loss(&self) -> PolicyLoss {
        self.policy_loss.unwrap_or(match self.advantage_estimator {
            AdvantageEstimator::Gspo => PolicyLoss::Gspo,
            AdvantageEstimator::Cispo => PolicyLoss::Cispo,
            _ => PolicyLoss::PpoClip,
        })
    }

    /// The denominator in force.
    pub fn loss_reducer(&self) -> LossReducer {
        let is_dr_grpo =
            self.loss == LossType::Policy && self.advantage_estimator == AdvantageEstimator::DrGrpo;
        self.loss_reducer.unwrap_or(if is_dr_grpo {
            LossReducer::ConstantLength
        } else {
            LossReducer::SampleMean
        })
    }

    /// Whether the samples are trained by a policy loss that compares with a critic's values.
    pub fn has_critic(&self) -> bool {
        self.loss == LossType::Policy && self.advantage_estimator == AdvantageEstimator::Ppo
    }

    /// Whether log-probs of a reference are needed.
    pub fn has_reference(&self) -> bool {
        match self.loss {
            LossType::Policy => self.kl_coef.is_some() || self.kl_loss_coef.is_some(),
            LossType::Dpo => true,
            LossType::Sft | LossType::RewardModel => false,
        }
    }

    /// Whether samples have to say where generation sent their tokens.
    pub fn replays_rollout(&self) -> bool {
        self.loss == LossType::Policy && self.routing_replay == RoutingReplay::Rollout
    }

    /// Whether the samples of a group are a pair: the better one, then the worse.
    pub fn has_pairs(&self) -> bool {
        matches!(self.loss, LossType::Dpo | LossType::RewardModel)
    }
}

/// `[reference]`: the policy of the KL term and of DPO.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reference {
    /// Its weight directory; the default is `model.path`.
    pub path: Option<String>,
    /// Becomes the policy after every so many training steps; never when missing.
    pub update_interval: Option<u64>,
}

/// `[critic]`: the model of values of `ppo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Critic {
    /// Its weight directory; the default is `model.path`, with a new value head.
    pub path: Option<String>,
    /// Its learning rate; the default is `train.lr`.
    pub lr: Option<f64>,
    /// A value may move away from the one before the update by this much; 0 does not clip.
    pub value_clip: f64,
    /// Training steps at the start that update the critic alone.
    pub num_critic_only_steps: u64,
}

impl Default for Critic {
    fn default() -> Self {
        Self { path: None, lr: None, value_clip: 0.2, num_critic_only_steps: 0 }
    }
}

/// `[teacher]`: whose log-probs the policy is drawn to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Teacher {
    /// Its weight directory; when missing, the samples bring `teacher_log_probs`.
    pub path: Option<String>,
    /// Weight of teacher minus policy log-prob in each token's advantage; missing means no teacher, and 1 for
    /// `distillation`.
    pub opd_kl_coef: Option<f64>,
}

/// What happens when a check does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// A warning; training goes on.
    #[default]
    Warn,
    /// The run ends with code 65 before the update.
    Fail,
}

/// What a loss or gradient that is not a finite number does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNotFinite {
    /// The run ends with code 65 before the update.
    #[default]
    Fail,
    /// The optimizer step is left out: weights, moments and the learning rate's schedule stay where they are.
    Skip,
}

/// `[checks]`: what must hold while training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    /// Before the first update of a rollout the ratio to the old policy is exactly 1, and before the first update of
    /// the run the KL to a reference of the same weights is exactly 0.
    pub first_step: bool,
    /// Greatest mean |log-prob of training - of generation|, in nats; not checked when missing.
    pub max_mismatch: Option<f64>,
    /// `warn` or `fail`.
    pub on_failure: OnFailure,
    /// `fail` or `skip`.
    pub on_not_finite: OnNotFinite,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            first_step: true,
            max_mismatch: None,
            on_failure: OnFailure::Warn,
            on_not_finite: OnNotFinite::Fail,
        }
    }
}
