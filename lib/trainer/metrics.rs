//! The numbers of one optimizer step.

/// What an optimizer step did; sums over all ranks. Losses have the denominator of the configured reducer; what is called
/// a sample mean is the mean over samples, by their weights, of the mean over a sample's trained tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepMetrics {
    /// Policy loss plus the KL term minus the entropy bonus.
    pub loss: f64,
    /// The clipped policy loss alone.
    pub pg_loss: f64,
    /// The estimate of KL(policy || reference); 0 without a reference.
    pub kl_loss: f64,
    /// Entropy of the policy in nats.
    pub entropy: f64,
    /// Share of tokens in the clipped branch, with the reducer's denominator.
    pub clip_fraction: f64,
    /// old - new log-prob, with the reducer's denominator.
    pub ppo_kl: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Mean over tokens of |`log_probs` - `rollout_log_probs`| before the rollout's first update.
    pub log_prob_abs_diff: f64,
    /// The largest of them.
    pub log_prob_abs_diff_max: f64,
    /// Log-prob before the rollout's first update, sample mean.
    pub log_probs: f64,
    /// Log-prob at generation, sample mean; none where none was recorded.
    pub rollout_log_probs: Option<f64>,
    /// Log-prob of the reference, sample mean; none without one.
    pub ref_log_probs: Option<f64>,
    /// Advantage, sample mean.
    pub advantages: f64,
    /// Entropy before the rollout's first update, sample mean.
    pub start_entropy: f64,
    /// Mean reward of the step's samples.
    pub reward_mean: f64,
    /// Standard deviation of the rewards over all samples of the step.
    pub reward_std: f64,
    /// Mean reward after the normalisation within groups.
    pub normalized_reward_mean: f64,
    /// Mean response length, masked tokens counted.
    pub response_len_mean: f64,
    /// Mean length of prompt and response.
    pub total_len_mean: f64,
    /// Share of samples cut off for their length.
    pub truncated_ratio: f64,
    /// Samples of the step.
    pub num_samples: usize,
    /// Samples without a trained token.
    pub num_masked_samples: usize,
    /// Trained tokens.
    pub num_trained_tokens: usize,
    /// Tokens that went through the model, shared prompts counted once.
    pub num_forward_tokens: usize,
    /// Tokens that would have gone through it with every prompt computed for every sample.
    pub num_unshared_tokens: usize,
}
