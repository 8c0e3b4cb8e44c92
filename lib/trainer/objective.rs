//! The loss of a micro-batch under the configured formulas, with what is told of it.

use slime_config::LossType;
use slime_model::ops::head_log_probs::{self, Fused, Slopes};
use tch::Tensor;

use crate::loss::Sequences;
use crate::loss::preference::{PairLoss, bradley_terry_loss, dpo_loss};
use crate::loss::sft::sft_loss;
use crate::pipeline::Hidden;
use crate::prepared::{KnownRows, Pairs, Prepared};
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

/// Rows under the policy as it is now.
pub(crate) struct Rows<'a> {
    pub log_prob_r: &'a Tensor,
    pub entropy_r: &'a Tensor,
    pub known: &'a KnownRows,
    /// Of all rows of the micro-batch.
    pub sequences: &'a Sequences,
    /// KL(policy || reference) over the whole distribution, where the loss reads it.
    pub whole_kl_r: Option<&'a Tensor>,
}

impl Rows<'_> {
    /// Log-probs before the rollout's first update, without gradient.
    pub fn old(&self) -> Result<Tensor> {
        Ok(self.known.old_log_prob_r.as_ref().unwrap_or(self.log_prob_r).f_detach()?)
    }
}

impl Trainer {
    /// The loss of one micro-batch from what the last layer gives.
    pub(crate) fn objective(
        &self,
        prepared: &Prepared,
        hidden: &Hidden,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Objective> {
        let mut objective = self.of_hidden_states(prepared, &hidden.rows_rd, mean_weight, tally)?;
        if let Some(loss) = self.mtp_loss(prepared, &hidden.residual_td, tally)? {
            objective.loss = objective.loss.f_add(&loss)?;
        }
        Ok(objective)
    }

    fn of_hidden_states(
        &self,
        prepared: &Prepared,
        hidden_od: &Tensor,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Objective> {
        if self.settings.algorithm.loss != LossType::RewardModel && self.settings.is_by_row() {
            return self.by_row(prepared, hidden_od, mean_weight, tally);
        }
        // Every rank computes the loss of all rows, and one of them counts it.
        let is_counted = prepared.share.counts_all();
        tally.counted_if(is_counted, |tally| self.of_all_rows(prepared, hidden_od, mean_weight, tally))
    }

    fn of_all_rows(
        &self,
        prepared: &Prepared,
        hidden_od: &Tensor,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Objective> {
        let (model, share) = (self.policy(), &prepared.share);
        if self.settings.algorithm.loss == LossType::RewardModel {
            let score_r = share.all(&model.values(hidden_od)?)?;
            return Self::preference(
                prepared,
                |pairs| {
                    let of = |index_p: &Tensor| score_r.f_index_select(0, index_p);
                    bradley_terry_loss(&of(&pairs.chosen_p)?, &of(&pairs.rejected_p)?, &pairs.margin_p)
                },
                tally,
            );
        }
        let shaping = prepared.shaping(self.settings.temperature);
        let targets_o = prepared.targets(hidden_od.device())?;
        let (log_prob_o, entropy_o) = model.head_log_probs(hidden_od, &targets_o, &shaping)?;
        let (log_prob_r, entropy_r) = (share.all(&log_prob_o)?, share.all(&entropy_o)?);
        let whole_kl_r = match (self.reference(), &prepared.ref_hidden_rd) {
            (Some(reference), Some(ref_hidden_od)) => {
                let kl_o = model.head_kl(hidden_od, reference, ref_hidden_od, self.settings.temperature)?;
                Some(share.all(&kl_o)?)
            }
            _ => None,
        };
        let rows = Rows {
            log_prob_r: &log_prob_r,
            entropy_r: &entropy_r,
            known: &prepared.known,
            sequences: &prepared.sequences,
            whole_kl_r: whole_kl_r.as_ref(),
        };
        if self.settings.algorithm.loss == LossType::Dpo {
            return self.dpo_objective(prepared, &rows, tally);
        }
        self.of_rows(&rows, mean_weight, tally)
    }

    /// The loss chunk of rows by chunk of rows: log-probs become slopes at once, so that logits are computed once.
    fn by_row(
        &self,
        prepared: &Prepared,
        hidden_od: &Tensor,
        mean_weight: f64,
        tally: &mut Tally,
    ) -> Result<Objective> {
        let algorithm = &self.settings.algorithm;
        let reads_entropy = algorithm.loss == LossType::Policy && algorithm.entropy_coef != 0.0;
        let leaf = |x: &Tensor| x.f_detach()?.f_set_requires_grad(true);
        let share = &prepared.share;
        let own = if share.is_split() { Some(prepared.known.own(share)?) } else { None };
        let own = own.as_ref().unwrap_or(&prepared.known);
        let (mut parts, mut old) = (Vec::new(), Vec::new());
        let mut slopes = |chunk: head_log_probs::Rows<'_>| -> Result<Slopes> {
            let (log_prob_r, entropy_r) = (leaf(chunk.log_probs_r)?, leaf(chunk.entropy_r)?);
            let known = own.narrow(chunk.start, log_prob_r.size1()?)?;
            let rows = Rows {
                log_prob_r: &log_prob_r,
                entropy_r: &entropy_r,
                known: &known,
                sequences: &prepared.sequences,
                whole_kl_r: None,
            };
            let objective = self.of_rows(&rows, mean_weight, tally)?;
            parts.push(objective.parts);
            old.push(objective.log_prob_r);
            let mut inputs = vec![&log_prob_r];
            inputs.extend(reads_entropy.then_some(&entropy_r));
            let mut grads = Tensor::f_run_backward(&[&objective.loss], &inputs, false, false)?.into_iter();
            let none = || Error::Role { role: "a slope in the log-probs" };
            let log_probs_r = grads.next().ok_or_else(none)?;
            Ok(Slopes { loss: objective.loss.f_detach()?, log_probs_r, entropy_r: grads.next() })
        };
        let targets_o = prepared.targets(hidden_od.device())?;
        let shaping = prepared.shaping(self.settings.temperature);
        let Fused { loss, .. } = self.policy().head_loss(hidden_od, &targets_o, &shaping, &mut slopes)?;
        let all = |parts: &[Tensor]| match parts {
            [] => share.all(&parts_of_none(&prepared.known.coefficient_r)?),
            parts => share.all(&Tensor::f_cat(parts, 0)?.f_detach()?),
        };
        Ok(Objective { loss, parts: all(&parts)?, log_prob_r: all(&old)? })
    }

    /// The loss over tokens of some rows.
    fn of_rows(&self, rows: &Rows<'_>, mean_weight: f64, tally: &mut Tally) -> Result<Objective> {
        let old_r = rows.old()?;
        tally.peak(Peak::OldDiff, rows.log_prob_r, &old_r)?;
        add_sample_means(rows.known, &old_r, rows.entropy_r, tally)?;
        let loss_r = if self.settings.algorithm.loss == LossType::Policy {
            self.policy_objective(rows, &old_r, mean_weight, tally)?
        } else {
            let loss_r = sft_loss(rows.log_prob_r)?;
            tally.add(Stat::Entropy, rows.entropy_r, &rows.known.coefficient_r)?;
            loss_r
        };
        let coefficient_r = &rows.known.coefficient_r;
        tally.add(Stat::Loss, &loss_r, coefficient_r)?;
        let loss = loss_r.f_mul(coefficient_r)?.f_sum(loss_r.kind())?;
        Ok(Objective { loss, parts: loss_r.f_detach()?, log_prob_r: old_r })
    }

    fn dpo_objective(&self, prepared: &Prepared, rows: &Rows<'_>, tally: &mut Tally) -> Result<Objective> {
        let algorithm = &self.settings.algorithm;
        let old_r = rows.old()?;
        tally.peak(Peak::OldDiff, rows.log_prob_r, &old_r)?;
        add_sample_means(rows.known, &old_r, rows.entropy_r, tally)?;
        let ref_r = rows.known.ref_log_prob_r.as_ref().ok_or(Error::Role { role: "a reference" })?;
        tally.peak(Peak::RefDiff, rows.log_prob_r, ref_r)?;
        let ratio_s = rows.sequences.sum(&rows.log_prob_r.f_sub(ref_r)?)?;
        let objective = Self::preference(
            prepared,
            |pairs| {
                let of = |index_p: &Tensor| ratio_s.f_index_select(0, index_p);
                let (chosen_p, rejected_p) = (of(&pairs.chosen_p)?, of(&pairs.rejected_p)?);
                dpo_loss(&chosen_p, &rejected_p, algorithm.dpo_beta, algorithm.dpo_label_smoothing)
            },
            tally,
        )?;
        Ok(Objective { log_prob_r: old_r, ..objective })
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
}

fn parts_of_none(like: &Tensor) -> Result<Tensor> {
    Ok(like.f_detach()?.f_narrow(0, 0, 0)?)
}

/// What is told of every loss over tokens, before the rollout's first update.
fn add_sample_means(known: &KnownRows, old_r: &Tensor, entropy_r: &Tensor, tally: &mut Tally) -> Result<()> {
    let coefficient_r = &known.mean_coefficient_r;
    let start_entropy_r = known.old_entropy_r.as_ref().unwrap_or(entropy_r);
    tally.add(Stat::LogProbs, old_r, coefficient_r)?;
    tally.add(Stat::StartEntropy, start_entropy_r, coefficient_r)?;
    for (stat, value_r) in [
        (Stat::Advantages, &known.advantage_r),
        (Stat::Returns, &known.return_r),
        (Stat::Values, &known.old_value_r),
        (Stat::RefLogProbs, &known.ref_log_prob_r),
        (Stat::TeacherLogProbs, &known.teacher_log_prob_r),
    ] {
        if let Some(value_r) = value_r {
            tally.add(stat, value_r, coefficient_r)?;
        }
    }
    if let Some(ref_r) = &known.ref_log_prob_r {
        tally.add(Stat::Kl, &old_r.f_sub(ref_r)?, coefficient_r)?;
    }
    if let Some(teacher_r) = &known.teacher_log_prob_r {
        tally.add(Stat::OpdReverseKl, &old_r.f_sub(teacher_r)?, coefficient_r)?;
    }
    let rollout_r = &known.rollout_log_prob_r;
    let known_r = rollout_r.f_isnan()?.f_logical_not()?;
    let zero = |x: &Tensor| x.f_nan_to_num(0.0, None::<f64>, None::<f64>);
    tally.add(Stat::RolloutLogProbs, &zero(rollout_r)?, coefficient_r)?;
    tally.add(Stat::RolloutCoefficients, &known_r, coefficient_r)?;
    tally.add(Stat::AbsDiff, &zero(&old_r.f_sub(rollout_r)?.f_abs()?)?, &known_r)?;
    tally.add(Stat::AbsDiffCount, &known_r, &known_r)?;
    tally.peak(Peak::AbsDiff, old_r, rollout_r)
}
