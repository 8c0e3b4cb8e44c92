//! What a trainer needs to know of the configuration.

use slime_config::{Algorithm, Checks, Critic, RunConfig, Train};

/// The numbers of one run's training.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `[train]`
    pub train: Train,
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
    /// Optimizer steps of one rollout.
    pub num_steps_per_rollout: usize,
    /// Optimizer steps of the whole run, for schedules that decay.
    pub num_optimizer_steps: u64,
    /// The reference becomes the policy after every so many rollouts.
    pub ref_update_interval: Option<u64>,
    /// Whether policy and reference begin with the same weights.
    pub reference_is_start: bool,
}

impl Settings {
    /// Those of a configuration.
    ///
    /// # Errors
    /// The batch identity does not hold.
    pub fn new(config: &RunConfig) -> slime_config::Result<Self> {
        let steps = config.batch()?.num_steps_per_rollout;
        // Greedy samples were drawn from no distribution; their log-probs are those of the plain one. Answers that
        // nobody sampled have none either.
        let is_sampled = config.algorithm.loss == slime_config::LossType::Policy;
        let temperature = config.rollout.temperature;
        let reference = config.reference.path.as_deref().unwrap_or(&config.model.path);
        Ok(Self {
            train: config.train.clone(),
            algorithm: config.algorithm.clone(),
            critic: config.critic.clone(),
            checks: config.checks.clone(),
            opd_kl_coef: config.opd_kl_coef(),
            loss_len: f64::from(config.algorithm.loss_len.unwrap_or(config.rollout.max_response_len)),
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
            algorithm: Algorithm::default(),
            critic: Critic::default(),
            checks: Checks::default(),
            opd_kl_coef: None,
            loss_len: 1.0,
            temperature: 1.0,
            num_steps_per_rollout: 1,
            num_optimizer_steps: 1,
            ref_update_interval: None,
            reference_is_start: false,
        }
    }
}
