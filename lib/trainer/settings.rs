//! What a trainer needs to know of the configuration.

use slime_config::{
    Algorithm, Checks, Critic, KlLossType, LossType, PolicyLoss, RatioLevel, Rollout, RunConfig, Train,
};

/// The numbers of one run's training.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `[train]`
    pub train: Train,
    /// Under `train.qat`, the size of the groups that experts are computed behind.
    pub int4_group_size: Option<u32>,
    /// `[algorithm]`
    pub algorithm: Algorithm,
    /// `[critic]`
    pub critic: Critic,
    /// `[checks]`
    pub checks: Checks,
    /// Weight of the teacher's term in each advantage; missing without a teacher.
    pub opd_kl_coef: Option<f64>,
    /// The length of the constant denominator, in tokens.
    pub loss_len: f64,
    /// The sampling temperature; log-probs are those of the distribution sampled from.
    pub temperature: f64,
    /// What the rollout took off the logits of tokens that were seen.
    pub penalties: SamplingPenalties,
    /// Whether the rollout sampled from a part of the vocabulary, so that samples have to say from which.
    pub truncates: bool,
    /// Optimizer steps of one rollout.
    pub num_steps_per_rollout: usize,
    /// Optimizer steps of the whole run, for schedules that decay.
    pub num_optimizer_steps: u64,
    /// The reference becomes the policy after every so many rollouts.
    pub ref_update_interval: Option<u64>,
    /// Whether policy and reference begin with the same weights.
    pub reference_is_start: bool,
}

/// `repetition_penalty`, `frequency_penalty` and `presence_penalty` of `[rollout]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingPenalties {
    /// 1 changes nothing.
    pub repetition: f64,
    /// 0 changes nothing.
    pub frequency: f64,
    /// 0 changes nothing.
    pub presence: f64,
}

impl SamplingPenalties {
    fn of(rollout: &Rollout) -> Self {
        Self {
            repetition: rollout.repetition_penalty,
            frequency: rollout.frequency_penalty,
            presence: rollout.presence_penalty,
        }
    }

    /// Whether no logit changes.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for SamplingPenalties {
    fn default() -> Self {
        Self { repetition: 1.0, frequency: 0.0, presence: 0.0 }
    }
}

impl Settings {
    /// Whether the loss is a sum over rows whose terms read nothing of other rows' current log-probs: then its slopes are
    /// known chunk of rows by chunk of rows, and logits are computed once ([`slime_model::Model::head_loss`]).
    pub(crate) fn is_by_row(&self) -> bool {
        let Algorithm { correction, .. } = &self.algorithm;
        let of_tokens = |level: Option<RatioLevel>| level.is_none_or(|level| level == RatioLevel::Token);
        match self.algorithm.loss {
            LossType::Sft => true,
            LossType::Dpo | LossType::RewardModel => false,
            LossType::Policy => {
                let compares_all =
                    self.algorithm.kl_loss_coef.is_some() && self.algorithm.kl_loss_type == KlLossType::Full;
                self.algorithm.policy_loss() != PolicyLoss::Gspo
                    && !compares_all
                    && correction.level == RatioLevel::Token
                    && of_tokens(correction.reject)
                    && correction.veto.is_none()
                    && correction.opsm_delta.is_none()
            }
        }
    }

    /// Weight of the loss of the layer for further tokens, where that is trained.
    pub(crate) fn mtp_loss_coef(&self) -> Option<f64> {
        self.train.mtp_loss_coef.filter(|_| !self.algorithm.has_pairs())
    }

    /// Those of a configuration.
    ///
    /// # Errors
    /// The batch identity does not hold.
    pub fn new(config: &RunConfig) -> slime_config::Result<Self> {
        let steps = config.batch()?.num_steps_per_rollout;
        // Greedy samples were drawn from no distribution; their log-probs are those of the plain one. Answers that
        // nobody sampled have none either.
        let is_sampled = config.algorithm.loss == LossType::Policy;
        let temperature = config.rollout.temperature;
        let reference = config.reference.path.as_deref().unwrap_or(&config.model.path);
        Ok(Self {
            train: config.train.clone(),
            int4_group_size: config
                .rollout
                .weights
                .as_ref()
                .filter(|_| config.train.qat)
                .map(|weights| weights.group_size),
            algorithm: config.algorithm.clone(),
            critic: config.critic.clone(),
            checks: config.checks.clone(),
            opd_kl_coef: config.opd_kl_coef(),
            loss_len: f64::from(config.algorithm.loss_len.unwrap_or(config.rollout.max_response_len)),
            penalties: if is_sampled {
                SamplingPenalties::of(&config.rollout)
            } else {
                SamplingPenalties::default()
            },
            truncates: is_sampled && config.rollout.truncates(),
            temperature: if is_sampled && temperature > 0.0 { temperature } else { 1.0 },
            num_steps_per_rollout: steps as usize,
            num_optimizer_steps: config.run.num_steps.unwrap_or(1) * u64::from(steps),
            ref_update_interval: config.reference.update_interval,
            reference_is_start: reference == config.model.path,
        })
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            train: Train::default(),
            int4_group_size: None,
            algorithm: Algorithm::default(),
            critic: Critic::default(),
            checks: Checks::default(),
            opd_kl_coef: None,
            loss_len: 1.0,
            temperature: 1.0,
            penalties: SamplingPenalties::default(),
            truncates: false,
            num_steps_per_rollout: 1,
            num_optimizer_steps: 1,
            ref_update_interval: None,
            reference_is_start: false,
        }
    }
}
