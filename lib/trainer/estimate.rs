//! From what is fixed to the advantage of every trained token.

use slime_comm::{Collectives, Op};
use slime_config::{AdvantageEstimator, LossType, OldLogProbs, RatioLevel};
use tch::{Device, Kind, Tensor};

use crate::advantage::{distillation, gae, reinforce_plus_plus, reinforce_plus_plus_baseline, whiten};
use crate::loss::correction::correct;
use crate::loss::kl::approx_kl;
use crate::plan::{Plan, Relative};
use crate::prepared::Prepared;
use crate::{Result, Scored, Trainer};

/// The numbers of a micro-batch's rows on the host; empty where nobody needs them.
struct HostRows {
    log_probs: Vec<f32>,
    kl: Vec<f32>,
    teacher: Vec<f32>,
    values: Vec<f32>,
}

/// The rows of one sample.
struct Rows<'a> {
    positions: Vec<usize>,
    log_probs: &'a [f32],
    kl: &'a [f32],
    teacher: &'a [f32],
    values: &'a [f32],
}

impl Trainer {
    /// Sets advantages and returns of every row; gives back the mean weight of the mismatch correction.
    pub(crate) fn estimate(&self, plans: &mut [Plan]) -> Result<f64> {
        if self.settings.algorithm.loss != LossType::Policy || !self.policy().stage().is_last() {
            return Ok(1.0);
        }
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        for plan in plans.iter() {
            for prepared in &plan.batches {
                let (of_batch, returns_of_batch) = self.estimate_batch(plan, prepared)?;
                advantages.extend(of_batch);
                returns.extend(returns_of_batch);
            }
        }
        if self.settings.algorithm.normalize_advantages {
            whiten(&mut advantages, &*self.dp)?;
        }
        let mut at = 0;
        for prepared in Self::batches(plans) {
            let end = at + prepared.batch.rows.len();
            let like = &prepared.known.coefficient_r;
            let tensor = |values: &[f32]| {
                Tensor::f_from_slice(values)?.f_to_kind(like.kind())?.f_to_device(like.device())
            };
            prepared.known.advantage_r = Some(tensor(&advantages[at..end])?);
            if self.critic.is_some() {
                prepared.known.return_r = Some(tensor(&returns[at..end])?);
            }
            at = end;
        }
        self.mean_weight(plans)
    }

    /// Advantages and, with a critic, returns of a micro-batch.
    fn estimate_batch(&self, plan: &Plan, prepared: &Prepared) -> Result<(Vec<f32>, Vec<f32>)> {
        let host = self.host_rows(plan, prepared)?;
        let places = &prepared.batch.places;
        let (mut advantages, mut returns) = (Vec::with_capacity(places.len()), Vec::new());
        for rows in places.chunk_by(|a, b| a.sample == b.sample) {
            let range = advantages.len()..advantages.len() + rows.len();
            let part = |values: &'_ Vec<f32>| -> std::ops::Range<usize> {
                if values.is_empty() { 0..0 } else { range.clone() }
            };
            let of_sample = Rows {
                positions: rows.iter().map(|place| place.token).collect(),
                log_probs: &host.log_probs[part(&host.log_probs)],
                kl: &host.kl[part(&host.kl)],
                teacher: &host.teacher[part(&host.teacher)],
                values: &host.values[part(&host.values)],
            };
            let sample = rows[0].sample;
            let scored = &plan.scored[sample];
            let (mut of_tokens, returns_of_tokens) = self.estimate_sample(&plan.relative[sample], &of_sample);
            if let Some(coef) = self.settings.opd_kl_coef {
                let terms = distillation(of_sample.log_probs, of_sample.teacher, coef);
                of_tokens.iter_mut().zip(terms).for_each(|(advantage, term)| *advantage += term);
            }
            if let Some(bad) = of_tokens.iter().find(|advantage| !advantage.is_finite()) {
                return Err(scored.wrong("advantage", "finite numbers", bad));
            }
            advantages.extend(of_tokens);
            returns.extend(returns_of_tokens);
        }
        Ok((advantages, returns))
    }

    fn estimate_sample(&self, relative: &Relative, rows: &Rows) -> (Vec<f32>, Vec<f32>) {
        let algorithm = &self.settings.algorithm;
        let (num, outcome) = (rows.positions.len(), relative.outcome);
        let kl_coef = algorithm.kl_coef.unwrap_or(0.0);
        let advantages = match algorithm.advantage_estimator {
            AdvantageEstimator::Ppo => {
                let reward = |at: usize| {
                    let own = relative.process.get(at).copied().unwrap_or(0.0);
                    let penalty = kl_coef * rows.kl.get(at).map_or(0.0, |kl| f64::from(*kl));
                    (f64::from(own) - penalty + if at + 1 == num { f64::from(outcome) } else { 0.0 }) as f32
                };
                let rewards: Vec<f32> = (0..num).map(reward).collect();
                return gae(&rewards, rows.values, algorithm.gamma, algorithm.lambda);
            }
            AdvantageEstimator::ReinforcePlusPlus => {
                let Relative { outcome, process } = relative;
                reinforce_plus_plus(*outcome, &rows.positions, rows.kl, process, kl_coef, algorithm.gamma)
            }
            AdvantageEstimator::ReinforcePlusPlusBaseline => {
                reinforce_plus_plus_baseline(outcome, num, rows.kl, kl_coef)
            }
            AdvantageEstimator::Distillation => vec![0.0; num],
            _ if relative.process.is_empty() => vec![outcome; num],
            _ => relative.process.iter().map(|process| outcome + process).collect(),
        };
        (advantages, Vec::new())
    }

    /// Brings what the estimator reads to the host, and names a sample whose numbers are none.
    fn host_rows(&self, plan: &Plan, prepared: &Prepared) -> Result<HostRows> {
        let algorithm = &self.settings.algorithm;
        let list = |tensor: Option<&Tensor>| -> Result<Vec<f32>> {
            let Some(tensor) = tensor else { return Ok(Vec::new()) };
            Ok(Vec::try_from(tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?)?)
        };
        let sampled_r = match algorithm.old_log_probs {
            OldLogProbs::Recomputed => prepared.known.old_log_prob_r.as_ref(),
            OldLogProbs::Rollout => Some(&prepared.known.rollout_log_prob_r),
        };
        let kl = match (algorithm.kl_coef, sampled_r, &prepared.known.ref_log_prob_r) {
            (Some(_), Some(log_prob_r), Some(ref_r)) => {
                list(Some(&approx_kl(log_prob_r, ref_r, algorithm.kl_loss_type, None)?))?
            }
            _ => Vec::new(),
        };
        let needs_own = self.settings.opd_kl_coef.is_some();
        let rows = HostRows {
            log_probs: list(sampled_r.filter(|_| needs_own))?,
            kl,
            teacher: list(prepared.known.teacher_log_prob_r.as_ref())?,
            values: list(prepared.known.old_value_r.as_ref())?,
        };
        for (field, values) in [
            ("log_probs", &rows.log_probs),
            ("ref_log_probs", &rows.kl),
            ("teacher_log_probs", &rows.teacher),
            ("values", &rows.values),
        ] {
            check_finite(field, values, plan, prepared)?;
        }
        Ok(rows)
    }

    /// The mean weight of the mismatch correction over the rollout: over its trained tokens, for ratios of sequences
    /// over its samples; 1 where weights are not divided by it.
    fn mean_weight(&self, plans: &[Plan]) -> Result<f64> {
        let correction = &self.settings.algorithm.correction;
        if !correction.normalize {
            return Ok(1.0);
        }
        let mut sums = [0.0, 0.0];
        for prepared in plans.iter().flat_map(|plan| &plan.batches) {
            let Some(old_r) = &prepared.known.old_log_prob_r else { continue };
            let corrected =
                correct(old_r, &prepared.known.rollout_log_prob_r, correction, 1.0, &prepared.sequences)?;
            let weights = match correction.level {
                RatioLevel::Token => corrected.weight_r,
                _ => prepared.sequences.mean(&corrected.weight_r)?,
            };
            sums[0] += weights.f_sum(Kind::Double)?.f_double_value(&[])?;
            sums[1] += weights.numel() as f64;
        }
        self.dp.all_reduce(&mut sums, Op::Sum)?;
        let mean = sums[0] / sums[1].max(1.0);
        // Weights that are all 0 stay so.
        Ok(if mean > 0.0 { mean } else { 1.0 })
    }
}

/// NaN where a number must be: the sample that has none.
fn check_finite(field: &'static str, values: &[f32], plan: &Plan, prepared: &Prepared) -> Result<()> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let scored: &Scored = &plan.scored[prepared.batch.places[at].sample];
    Err(scored.wrong(field, "a finite number for each trained token", values[at]))
}
