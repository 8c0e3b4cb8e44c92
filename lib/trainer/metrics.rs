//! The numbers of one optimizer step.

use std::collections::BTreeMap;

use slime_config::{CorrectionWeight, LossType};

use crate::Trainer;
use crate::tally::{Peak, Stat, Tally};

/// What an optimizer step did; sums over all ranks. Losses have the denominator of the configured reducer; what is called
/// a sample mean is the mean over samples, by their weights, of the mean over a sample's trained tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepMetrics {
    /// Whether the policy was updated: not while the critic learns alone.
    pub is_update: bool,
    /// Whether the policy's update was left out, because loss or gradient was not finite.
    pub is_skipped: bool,
    /// Policy loss plus the KL term minus the entropy bonus; for other losses the loss itself.
    pub loss: f64,
    /// The policy loss alone.
    pub pg_loss: f64,
    /// The KL(policy || reference) of the loss; 0 without a reference.
    pub kl_loss: f64,
    /// Entropy of the policy in nats.
    pub entropy: f64,
    /// Share of tokens that clipping changed, with the reducer's denominator.
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
    /// Mean reward of the step's samples; none where samples have none.
    pub reward_mean: Option<f64>,
    /// Standard deviation of the rewards over all samples of the step.
    pub reward_std: Option<f64>,
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
    /// What only some formulas have, under the names of `slime_metrics::names`.
    pub extra: BTreeMap<&'static str, f64>,
}

impl Trainer {
    /// Writes the sums of all ranks into `metrics`.
    pub(crate) fn fill(&self, metrics: &mut StepMetrics, tally: &Tally) {
        let known = tally.sum(Stat::RolloutCoefficients);
        let sum = |stat| tally.sum(stat);
        metrics.is_update = true;
        metrics.loss = sum(Stat::Loss);
        metrics.pg_loss = sum(Stat::PgLoss);
        metrics.kl_loss = sum(Stat::KlLoss);
        metrics.entropy = sum(Stat::Entropy);
        metrics.clip_fraction = sum(Stat::Clipped);
        metrics.ppo_kl = sum(Stat::PpoKl);
        metrics.log_prob_abs_diff = sum(Stat::AbsDiff) / sum(Stat::AbsDiffCount).max(1.0);
        metrics.log_prob_abs_diff_max = tally.most(Peak::AbsDiff);
        metrics.log_probs = sum(Stat::LogProbs);
        metrics.rollout_log_probs = (known > 0.0).then(|| sum(Stat::RolloutLogProbs) / known);
        metrics.ref_log_probs = self.reference.is_some().then(|| sum(Stat::RefLogProbs));
        metrics.advantages = sum(Stat::Advantages);
        metrics.start_entropy = sum(Stat::StartEntropy);
        self.fill_extra(&mut metrics.extra, tally);
    }

    /// The numbers that only the configured formulas have.
    fn fill_extra(&self, extra: &mut BTreeMap<&'static str, f64>, tally: &Tally) {
        let algorithm = &self.settings.algorithm;
        let correction = &algorithm.correction;
        let is_policy = algorithm.loss == LossType::Policy;
        let has_weight = correction.weight != CorrectionWeight::None;
        let of_rollout = is_policy && correction.reads_rollout();
        let has_teacher = self.settings.opd_kl_coef.is_some();
        for (is_told, name, stat) in [
            (is_policy, "train/ois", Stat::Ois),
            (of_rollout && has_weight, "train/tis", Stat::Tis),
            (of_rollout && has_weight, "train/tis_clipfrac", Stat::TisClipped),
            (of_rollout && has_weight, "train/tis_abs", Stat::TisAbs),
            (of_rollout, "train/mis_kl", Stat::MisKl),
            (of_rollout, "train/mis_k3_kl", Stat::MisK3Kl),
            (of_rollout && correction.rejects(), "train/mis_rs_mask_fraction", Stat::Rejected),
            (is_policy && correction.opsm_delta.is_some(), "train/opsm_clipfrac", Stat::OpsmClipped),
            (self.reference.is_some() && is_policy, "rollout/kl", Stat::Kl),
            (self.critic.is_some(), "rollout/values", Stat::Values),
            (self.critic.is_some(), "rollout/returns", Stat::Returns),
            (has_teacher, "rollout/teacher_log_probs", Stat::TeacherLogProbs),
            (has_teacher, "rollout/opd_reverse_kl", Stat::OpdReverseKl),
            (algorithm.has_pairs(), "train/rewards/chosen", Stat::ChosenRewards),
            (algorithm.has_pairs(), "train/rewards/rejected", Stat::RejectedRewards),
            (algorithm.has_pairs(), "train/rewards/accuracies", Stat::Accuracies),
            (self.settings.mtp_loss_coef().is_some(), "train/mtp_loss", Stat::MtpLoss),
        ] {
            if is_told {
                extra.insert(name, tally.sum(stat));
            }
        }
    }
}
