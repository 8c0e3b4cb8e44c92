//! The policy's loss of each row: the clipped surrogate, corrections, entropy and KL terms, with what is told of them.

use slime_config::{Algorithm, CorrectionWeight, KlLossType, OldLogProbs, PolicyLoss as PolicyLossName};
use tch::Tensor;

use crate::loss::correction::{correct, off_policy_keep};
use crate::loss::kl::approx_kl;
use crate::loss::policy_loss::{Clip, PolicyLoss, cispo, gspo_log_ratio, ppo_clip};
use crate::objective::Rows;
use crate::tally::{Peak, Stat, Tally};
use crate::{Error, Result, Trainer};

impl Trainer {
    /// The loss of each row before its coefficient; `old_r` are the log-probs before the rollout's first update.
    pub(crate) fn policy_objective(
        &self,
        rows: &Rows<'_>,
        old_r: &Tensor,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Tensor> {
        let (algorithm, known) = (&self.settings.algorithm, rows.known);
        let coefficient_r = &known.coefficient_r;
        let advantage_r = known.advantage_r.as_ref().ok_or(Error::Role { role: "advantages" })?;
        let anchor_r = match algorithm.old_log_probs {
            OldLogProbs::Recomputed => old_r.shallow_clone(),
            OldLogProbs::Rollout => known.rollout_log_prob_r.shallow_clone(),
        };
        let PolicyLoss { loss_r, clipped_r } = policy_loss(algorithm, rows, &anchor_r, advantage_r)?;
        let (weight_r, keep_r) =
            self.correction(rows, [old_r, &anchor_r, advantage_r], mean_weight, tally)?;
        let pg_r = loss_r.f_mul(&weight_r)?.f_mul(&keep_r)?;
        let mut loss_r = pg_r.shallow_clone();
        let moved_r = anchor_r.f_sub(&rows.log_prob_r.f_detach()?)?;
        for (stat, value_r) in [
            (Stat::PgLoss, &pg_r),
            (Stat::Clipped, &clipped_r.f_mul(&keep_r)?),
            (Stat::PpoKl, &moved_r.f_mul(&keep_r)?),
            (Stat::Entropy, &rows.entropy_r.f_mul(&keep_r)?),
            (Stat::Ois, &moved_r.f_neg()?.f_exp()?),
        ] {
            tally.add(stat, value_r, coefficient_r)?;
        }
        if algorithm.entropy_coef != 0.0 {
            loss_r = loss_r.f_sub(&rows.entropy_r.f_mul_scalar(algorithm.entropy_coef)?.f_mul(&keep_r)?)?;
        }
        if let (Some(coef), Some(ref_r)) = (algorithm.kl_loss_coef, &known.ref_log_prob_r) {
            let estimate_r = self.kl(rows, &anchor_r, ref_r)?.f_mul(&keep_r)?;
            tally.add(Stat::KlLoss, &estimate_r, coefficient_r)?;
            if coef != 0.0 {
                loss_r = loss_r.f_add(&estimate_r.f_mul_scalar(coef)?)?;
            }
        }
        if let Some(ref_r) = &known.ref_log_prob_r {
            tally.peak(Peak::RefDiff, rows.log_prob_r, ref_r)?;
        }
        Ok(loss_r)
    }

    /// The KL term of each row, with gradient.
    fn kl(&self, rows: &Rows<'_>, anchor_r: &Tensor, ref_r: &Tensor) -> Result<Tensor> {
        let algorithm = &self.settings.algorithm;
        if let (KlLossType::Full, Some(kl_r)) = (algorithm.kl_loss_type, rows.whole_kl_r) {
            return Ok(kl_r.shallow_clone());
        }
        let ratio_r =
            if algorithm.unbiased_kl { Some(rows.log_prob_r.f_sub(anchor_r)?.f_exp()?) } else { None };
        approx_kl(rows.log_prob_r, ref_r, algorithm.kl_loss_type, ratio_r.as_ref())
    }

    /// Weight and mask of each row for the mismatch between generation and training, and for sequences that went too far.
    fn correction(
        &self,
        rows: &Rows<'_>,
        [old_r, anchor_r, advantage_r]: [&Tensor; 3],
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<(Tensor, Tensor)> {
        let correction = &self.settings.algorithm.correction;
        let (coefficient_r, rollout_r) = (&rows.known.coefficient_r, &rows.known.rollout_log_prob_r);
        let mut weight_r = coefficient_r.f_ones_like()?;
        let mut keep_r = weight_r.shallow_clone();
        if correction.reads_rollout() {
            let corrected = correct(old_r, rollout_r, correction, mean_weight, rows.sequences)?;
            if correction.weight != CorrectionWeight::None {
                weight_r = corrected.weight_r;
            }
            keep_r = corrected.keep_r;
            // Generation's own divergence from training: k1 and k3 of rollout / training.
            let d_r = old_r.f_sub(rollout_r)?;
            for (stat, value_r) in [
                (Stat::Tis, &corrected.ratio_r),
                (Stat::TisClipped, &corrected.bounded_r),
                (Stat::TisAbs, &corrected.ratio_r.f_sub_scalar(1.0)?.f_abs()?),
                (Stat::Rejected, &keep_r.f_neg()?.f_add_scalar(1.0)?),
                (Stat::MisKl, &d_r.f_neg()?),
                (Stat::MisK3Kl, &d_r.f_expm1()?.f_sub(&d_r)?),
            ] {
                tally.add(stat, value_r, coefficient_r)?;
            }
        }
        if let Some(delta) = correction.opsm_delta {
            let near_r = off_policy_keep(rows.log_prob_r, anchor_r, advantage_r, delta, rows.sequences)?;
            tally.add(
                Stat::OpsmClipped,
                &near_r.f_neg()?.f_add_scalar(1.0)?,
                &rows.known.mean_coefficient_r,
            )?;
            keep_r = keep_r.f_mul(&near_r)?;
        }
        Ok((weight_r, keep_r))
    }
}

fn policy_loss(
    algorithm: &Algorithm,
    rows: &Rows<'_>,
    anchor_r: &Tensor,
    advantage_r: &Tensor,
) -> Result<PolicyLoss> {
    let (clip, log_prob_r) = (Clip::from(algorithm), rows.log_prob_r);
    match algorithm.policy_loss() {
        PolicyLossName::PpoClip => ppo_clip(&log_prob_r.f_sub(anchor_r)?, advantage_r, clip),
        PolicyLossName::Gspo => {
            ppo_clip(&gspo_log_ratio(log_prob_r, anchor_r, rows.sequences)?, advantage_r, clip)
        }
        PolicyLossName::Cispo => cispo(log_prob_r, anchor_r, advantage_r, clip),
    }
}
