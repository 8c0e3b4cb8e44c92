//! What stays fixed over a rollout's optimizer steps: log-probs before the first update, of the reference and of the
//! teacher, and the critic's values.

use std::time::Instant;

use slime_config::{KlLossType, LossType, OldLogProbs, RoutingReplay};
use slime_model::Model;
use slime_model::ops::head_log_probs::{self, Slopes};
use tch::Tensor;

use crate::pipeline::{Routers, frozen_batches, without_grad};
use crate::plan::Plan;
use crate::prepared::Prepared;
use crate::trainer::Reference;
use crate::{Error, Result, Settings, Trainer};

impl Trainer {
    /// Log-probs of policy, reference and teacher, where something reads them; on a last stage, which computes the loss.
    pub(crate) fn fix_log_probs(&mut self, plans: &mut [Plan]) -> Result<()> {
        let mut batches: Vec<&mut Prepared> = Self::batches(plans).collect();
        if self.needs_old_log_probs() {
            let began = Instant::now();
            let policy = self.policy();
            let routers = if self.records_routes() { Routers::Recorded } else { Routers::Replayed };
            frozen_batches(policy, &mut batches, routers, |prepared, hidden_rd| {
                let (log_prob_r, entropy_r) = self.frozen(policy, prepared, &hidden_rd)?;
                (prepared.known.old_log_prob_r, prepared.known.old_entropy_r) =
                    (Some(log_prob_r), Some(entropy_r));
                Ok(())
            })?;
            self.report.log_probs = self.observation.phase("log_probs", began);
        }
        if self.reference.is_some() {
            let began = Instant::now();
            // What the policy was before training is the policy without its adapters.
            let is_base = matches!(self.reference, Some(Reference::Base));
            self.actor.model.set_adapted(!is_base);
            let result = self.fix_ref_log_probs(&mut batches);
            self.actor.model.set_adapted(true);
            result?;
            self.report.ref_log_probs = self.observation.phase("ref_log_probs", began);
        }
        if let Some(teacher) = &self.teacher {
            let began = Instant::now();
            frozen_batches(teacher, &mut batches, Routers::Free, |prepared, hidden_rd| {
                prepared.known.teacher_log_prob_r = Some(self.frozen(teacher, prepared, &hidden_rd)?.0);
                Ok(())
            })?;
            self.report.teacher_log_probs = self.observation.phase("teacher_log_probs", began);
        }
        Ok(())
    }

    fn fix_ref_log_probs(&self, batches: &mut [&mut Prepared]) -> Result<()> {
        let Some(reference) = self.reference() else { return Ok(()) };
        let algorithm = &self.settings.algorithm;
        let is_whole = algorithm.loss == LossType::Policy && algorithm.kl_loss_type == KlLossType::Full;
        // Reference and teacher are other models: their routers choose by themselves.
        frozen_batches(reference, batches, Routers::Free, |prepared, hidden_rd| {
            let (log_prob_r, _) = self.frozen(reference, prepared, &hidden_rd)?;
            prepared.known.ref_log_prob_r = Some(log_prob_r);
            prepared.ref_hidden_rd = is_whole.then_some(hidden_rd);
            Ok(())
        })
    }

    /// The critic's values before its first update.
    pub(crate) fn fix_values(&mut self, plans: &mut [Plan]) -> Result<()> {
        if let Some(critic) = &self.critic {
            let began = Instant::now();
            let mut batches: Vec<&mut Prepared> = Self::batches(plans).collect();
            frozen_batches(&critic.model, &mut batches, Routers::Free, |prepared, hidden_rd| {
                prepared.known.old_value_r =
                    Some(prepared.share.all(&without_grad(|| critic.model.values(&hidden_rd))?)?);
                Ok(())
            })?;
            self.report.values = self.observation.phase("values", began);
        }
        Ok(())
    }

    /// Whether the policy's log-probs must be known before its first update. With one optimizer step, and nothing that
    /// estimates from them, they are those of the step itself: the ratio is exactly 1 and a forward pass is saved.
    fn needs_old_log_probs(&self) -> bool {
        let Settings { algorithm, num_steps_per_rollout, opd_kl_coef, .. } = &self.settings;
        let estimates = algorithm.kl_coef.is_some() || opd_kl_coef.is_some();
        let is_policy = algorithm.loss == LossType::Policy;
        let is_recomputed = algorithm.old_log_probs == OldLogProbs::Recomputed;
        is_policy
            && ((is_recomputed || self.records_routes()) && *num_steps_per_rollout > 1
                || estimates
                || algorithm.correction.normalize)
    }

    /// Whether the policy's pass before its first update says where tokens go from then on.
    fn records_routes(&self) -> bool {
        self.settings.algorithm.routing_replay == RoutingReplay::Recomputed
    }

    /// Log-probs and entropy of all rows from a model's hidden states of this rank's, without gradient; to the bit those of a
    /// training step.
    fn frozen(&self, model: &Model, prepared: &Prepared, hidden_rd: &Tensor) -> Result<(Tensor, Tensor)> {
        without_grad(|| {
            let targets_r = prepared.targets(hidden_rd.device())?;
            let shaping = prepared.shaping(self.settings.temperature);
            let (log_prob_o, entropy_o) = if self.settings.is_by_row() {
                // No loss: the rows' log-probs alone, by the products of a step.
                let mut nothing = |rows: head_log_probs::Rows<'_>| {
                    let log_probs_r = rows.log_probs_r.f_zeros_like()?;
                    let loss = log_probs_r.f_sum(log_probs_r.kind())?;
                    Ok::<_, Error>(Slopes { loss, log_probs_r, entropy_r: None })
                };
                let fused = model.head_loss(hidden_rd, &targets_r, &shaping, &mut nothing)?;
                (fused.log_probs_r, fused.entropy_r)
            } else {
                model.head_log_probs(hidden_rd, &targets_r, &shaping)?
            };
            Ok((prepared.share.all(&log_prob_o)?, prepared.share.all(&entropy_o)?))
        })
    }
}
