//! The loss of a micro-batch under the configured formulas, with what is told of it.

use slime_config::{
    Algorithm, CorrectionWeight, KlLossType, LossType, OldLogProbs, PolicyLoss as PolicyLossName,
};
use tch::Tensor;

use crate::log_probs::{head, hidden_states};
use crate::loss::correction::{correct, off_policy_keep};
use crate::loss::kl::approx_kl;
use crate::loss::policy_loss::{Clip, PolicyLoss, cispo, gspo_log_ratio, ppo_clip};
use crate::loss::preference::{PairLoss, bradley_terry_loss, dpo_loss};
use crate::loss::sft::sft_loss;
use crate::plan::{Pairs, Prepared};
use crate::tally::{Peak, Stat, Tally};
use crate::{Error, Result, Trainer};

/// A loss that is ready for its backward pass.
pub(crate) struct Objective {
    /// One number, denominators applied.
    pub loss: Tensor,
    /// What each row or pair added, before its coefficient.
    pub parts: Tensor,
    /// Log-probs before the rollout's first update; empty where the loss has none.
    pub log_prob_r: Tensor,
}

impl Trainer {
    /// Forward pass and loss of one micro-batch.
    pub(crate) fn objective(
        &self,
        prepared: &Prepared,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Objective> {
        let (model, temperature) = (self.policy(), self.settings.temperature);
        let hidden_rd = hidden_states(model, &prepared.batch)?;
        if self.settings.algorithm.loss == LossType::RewardModel {
            let score_r = model.values(&hidden_rd)?;
            return Self::preference(
                prepared,
                |pairs| {
                    let of = |index_p: &Tensor| score_r.f_index_select(0, index_p);
                    bradley_terry_loss(&of(&pairs.chosen_p)?, &of(&pairs.rejected_p)?, &pairs.margin_p)
                },
                tally,
            );
        }
        let (log_prob_r, entropy_r) = head(model, &prepared.batch, &hidden_rd, temperature)?;
        let old_r = prepared.old_log_prob_r.as_ref().unwrap_or(&log_prob_r).f_detach()?;
        tally.peak(Peak::OldDiff, &log_prob_r, &old_r)?;
        add_sample_means(prepared, &old_r, &entropy_r, tally)?;
        let rows =
            Rows { hidden_rd: &hidden_rd, log_prob_r: &log_prob_r, entropy_r: &entropy_r, old_r: &old_r };
        let mut objective = match self.settings.algorithm.loss {
            LossType::Policy => self.policy_objective(prepared, &rows, mean_weight, tally)?,
            LossType::Dpo => self.dpo_objective(prepared, &rows, tally)?,
            LossType::Sft | LossType::RewardModel => {
                let loss_r = sft_loss(&log_prob_r)?;
                tally.add(Stat::Loss, &loss_r, &prepared.coefficient_r)?;
                tally.add(Stat::Entropy, &entropy_r, &prepared.coefficient_r)?;
                whole(&loss_r, prepared)?
            }
        };
        objective.log_prob_r = old_r;
        Ok(objective)
    }

    fn dpo_objective(&self, prepared: &Prepared, rows: &Rows, tally: &mut Tally) -> Result<Objective> {
        let algorithm = &self.settings.algorithm;
        let ref_r = prepared.ref_log_prob_r.as_ref().ok_or(Error::Role { role: "a reference" })?;
        tally.peak(Peak::RefDiff, rows.log_prob_r, ref_r)?;
        let ratio_s = prepared.sequences.sum(&rows.log_prob_r.f_sub(ref_r)?)?;
        Self::preference(
            prepared,
            |pairs| {
                let of = |index_p: &Tensor| ratio_s.f_index_select(0, index_p);
                let (chosen_p, rejected_p) = (of(&pairs.chosen_p)?, of(&pairs.rejected_p)?);
                dpo_loss(&chosen_p, &rejected_p, algorithm.dpo_beta, algorithm.dpo_label_smoothing)
            },
            tally,
        )
    }

    /// The loss of the micro-batch's pairs; the denominator is the weight of all pairs of the global batch.
    fn preference(
        prepared: &Prepared,
        of_pairs: impl FnOnce(&Pairs) -> Result<PairLoss>,
        tally: &mut Tally,
    ) -> Result<Objective> {
        let pairs = prepared.pairs.as_ref().ok_or(Error::Role { role: "pairs of answers" })?;
        let PairLoss { loss_p, chosen_p, rejected_p } = of_pairs(pairs)?;
        let coefficient_p = &pairs.coefficient_p;
        tally.add(Stat::Loss, &loss_p, coefficient_p)?;
        tally.add(Stat::ChosenRewards, &chosen_p, coefficient_p)?;
        tally.add(Stat::RejectedRewards, &rejected_p, coefficient_p)?;
        tally.add(Stat::Accuracies, &chosen_p.f_gt_tensor(&rejected_p)?, coefficient_p)?;
        let loss = loss_p.f_mul(coefficient_p)?.f_sum(loss_p.kind())?;
        let parts = loss_p.f_detach()?;
        Ok(Objective { loss, parts, log_prob_r: parts_of_none(coefficient_p)? })
    }

    fn policy_objective(
        &self,
        prepared: &Prepared,
        rows: &Rows,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Objective> {
        let algorithm = &self.settings.algorithm;
        let coefficient_r = &prepared.coefficient_r;
        let advantage_r = prepared.advantage_r.as_ref().ok_or(Error::Role { role: "advantages" })?;
        let anchor_r = match algorithm.old_log_probs {
            OldLogProbs::Recomputed => rows.old_r.shallow_clone(),
            OldLogProbs::Rollout => prepared.rollout_log_prob_r.shallow_clone(),
        };
        let PolicyLoss { loss_r, clipped_r } =
            policy_loss(algorithm, rows.log_prob_r, &anchor_r, advantage_r, prepared)?;
        let (weight_r, keep_r) =
            self.correction(prepared, rows, &anchor_r, advantage_r, mean_weight, tally)?;
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
        if let (Some(coef), Some(ref_r)) = (algorithm.kl_loss_coef, &prepared.ref_log_prob_r) {
            let estimate_r = self.kl(prepared, rows, &anchor_r, ref_r)?.f_mul(&keep_r)?;
            tally.add(Stat::KlLoss, &estimate_r, coefficient_r)?;
            if coef != 0.0 {
                loss_r = loss_r.f_add(&estimate_r.f_mul_scalar(coef)?)?;
            }
        }
        if let Some(ref_r) = &prepared.ref_log_prob_r {
            tally.peak(Peak::RefDiff, rows.log_prob_r, ref_r)?;
        }
        tally.add(Stat::Loss, &loss_r, coefficient_r)?;
        whole(&loss_r, prepared)
    }

    /// The KL term of each row, with gradient.
    fn kl(&self, prepared: &Prepared, rows: &Rows, anchor_r: &Tensor, ref_r: &Tensor) -> Result<Tensor> {
        let algorithm = &self.settings.algorithm;
        if let (KlLossType::Full, Some(reference), Some(ref_hidden_rd)) =
            (algorithm.kl_loss_type, &self.reference, &prepared.ref_hidden_rd)
        {
            let temperature = self.settings.temperature;
            return Ok(self.policy().head_kl(rows.hidden_rd, reference, ref_hidden_rd, temperature)?);
        }
        let ratio_r =
            if algorithm.unbiased_kl { Some(rows.log_prob_r.f_sub(anchor_r)?.f_exp()?) } else { None };
        approx_kl(rows.log_prob_r, ref_r, algorithm.kl_loss_type, ratio_r.as_ref())
    }

    /// Weight and mask of each row for the mismatch between generation and training, and for sequences that went too far.
    fn correction(
        &self,
        prepared: &Prepared,
        rows: &Rows,
        anchor_r: &Tensor,
        advantage_r: &Tensor,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<(Tensor, Tensor)> {
        let correction = &self.settings.algorithm.correction;
        let (coefficient_r, rollout_r) = (&prepared.coefficient_r, &prepared.rollout_log_prob_r);
        let mut weight_r = coefficient_r.f_ones_like()?;
        let mut keep_r = weight_r.shallow_clone();
        if correction.reads_rollout() {
            let corrected = correct(rows.old_r, rollout_r, correction, mean_weight, &prepared.sequences)?;
            if correction.weight != CorrectionWeight::None {
                weight_r = corrected.weight_r;
            }
            keep_r = corrected.keep_r;
            // Generation's own divergence from training: k1 and k3 of rollout / training.
            let d_r = rows.old_r.f_sub(rollout_r)?;
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
            let near_r = off_policy_keep(rows.log_prob_r, anchor_r, advantage_r, delta, &prepared.sequences)?;
            tally.add(
                Stat::OpsmClipped,
                &near_r.f_neg()?.f_add_scalar(1.0)?,
                &prepared.mean_coefficient_r,
            )?;
            keep_r = keep_r.f_mul(&near_r)?;
        }
        Ok((weight_r, keep_r))
    }
}

/// A micro-batch's rows under the policy as it is now.
struct Rows<'a> {
    hidden_rd: &'a Tensor,
    log_prob_r: &'a Tensor,
    entropy_r: &'a Tensor,
    old_r: &'a Tensor,
}

fn policy_loss(
    algorithm: &Algorithm,
    log_prob_r: &Tensor,
    anchor_r: &Tensor,
    advantage_r: &Tensor,
    prepared: &Prepared,
) -> Result<PolicyLoss> {
    let clip = Clip::from(algorithm);
    match algorithm.policy_loss() {
        PolicyLossName::PpoClip => ppo_clip(&log_prob_r.f_sub(anchor_r)?, advantage_r, clip),
        PolicyLossName::Gspo => {
            ppo_clip(&gspo_log_ratio(log_prob_r, anchor_r, &prepared.sequences)?, advantage_r, clip)
        }
        PolicyLossName::Cispo => cispo(log_prob_r, anchor_r, advantage_r, clip),
    }
}

/// The sum over rows, with the reducer's denominator.
fn whole(loss_r: &Tensor, prepared: &Prepared) -> Result<Objective> {
    let loss = loss_r.f_mul(&prepared.coefficient_r)?.f_sum(loss_r.kind())?;
    let parts = loss_r.f_detach()?;
    Ok(Objective { loss, parts, log_prob_r: parts_of_none(loss_r)? })
}

fn parts_of_none(like: &Tensor) -> Result<Tensor> {
    Ok(like.f_detach()?.f_narrow(0, 0, 0)?)
}

/// What is told of every loss over tokens, before the rollout's first update.
fn add_sample_means(
    prepared: &Prepared,
    old_r: &Tensor,
    entropy_r: &Tensor,
    tally: &mut Tally,
) -> Result<()> {
    let coefficient_r = &prepared.mean_coefficient_r;
    let start_entropy_r = prepared.old_entropy_r.as_ref().unwrap_or(entropy_r);
    tally.add(Stat::LogProbs, old_r, coefficient_r)?;
    tally.add(Stat::StartEntropy, start_entropy_r, coefficient_r)?;
    for (stat, value_r) in [
        (Stat::Advantages, &prepared.advantage_r),
        (Stat::Returns, &prepared.return_r),
        (Stat::Values, &prepared.old_value_r),
        (Stat::RefLogProbs, &prepared.ref_log_prob_r),
        (Stat::TeacherLogProbs, &prepared.teacher_log_prob_r),
    ] {
        if let Some(value_r) = value_r {
            tally.add(stat, value_r, coefficient_r)?;
        }
    }
    if let Some(ref_r) = &prepared.ref_log_prob_r {
        tally.add(Stat::Kl, &old_r.f_sub(ref_r)?, coefficient_r)?;
    }
    if let Some(teacher_r) = &prepared.teacher_log_prob_r {
        tally.add(Stat::OpdReverseKl, &old_r.f_sub(teacher_r)?, coefficient_r)?;
    }
    let rollout_r = &prepared.rollout_log_prob_r;
    let known_r = rollout_r.f_isnan()?.f_logical_not()?;
    let zero = |x: &Tensor| x.f_nan_to_num(0.0, None::<f64>, None::<f64>);
    tally.add(Stat::RolloutLogProbs, &zero(rollout_r)?, coefficient_r)?;
    tally.add(Stat::RolloutCoefficients, &known_r, coefficient_r)?;
    tally.add(Stat::AbsDiff, &zero(&old_r.f_sub(rollout_r)?.f_abs()?)?, &known_r)?;
    tally.add(Stat::AbsDiffCount, &known_r, &known_r)?;
    tally.peak(Peak::AbsDiff, old_r, rollout_r)
}
