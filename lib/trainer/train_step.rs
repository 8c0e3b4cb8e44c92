//! One optimizer step: forward and backward of every micro-batch, sums over the ranks, clipping, update.

use std::time::Instant;

use slime_comm::{Collectives, Op};
use tch::{Device, Kind, Tensor};

use crate::kl::approx_kl;
use crate::log_probs::log_probs;
use crate::policy_loss::{Clip, policy_loss};
use crate::schedule::learning_rate;
use crate::trainer::{Plan, Prepared, Trainer};
use crate::{Error, Result, StepMetrics};

/// Places in the sums that ranks add up.
const LOSS: usize = 0;
const PG_LOSS: usize = 1;
const KL_LOSS: usize = 2;
const ENTROPY: usize = 3;
const CLIPPED: usize = 4;
const PPO_KL: usize = 5;
const ABS_DIFF: usize = 6;
const ABS_DIFF_COUNT: usize = 7;
const LOG_PROBS: usize = 8;
const ROLLOUT_LOG_PROBS: usize = 9;
const ROLLOUT_COEFFICIENTS: usize = 10;
const REF_LOG_PROBS: usize = 11;
const ADVANTAGES: usize = 12;
const START_ENTROPY: usize = 13;
const NUM_SUMS: usize = 14;

/// Sums over rows, and the largest log-prob difference.
struct Sums {
    sums: [f64; NUM_SUMS],
    max_diff: f64,
}

impl Trainer {
    pub(crate) fn train_step(
        &mut self,
        plan: &Plan,
        inspect: &mut impl FnMut(&StepMetrics, &[(String, Tensor)]) -> Result<()>,
    ) -> Result<StepMetrics> {
        self.optimizer.zero_grads()?;
        let mut sums = Sums { sums: [0.0; NUM_SUMS], max_diff: 0.0 };
        let Plan { batches, counts, logged } = plan;
        for prepared in batches {
            let kept_r = self.micro_step(prepared, &mut sums)?;
            self.optimizer.accumulate()?;
            if prepared.is_logged {
                let values = Vec::<f32>::try_from(kept_r.f_to_device(Device::Cpu)?)?;
                for (place, value) in prepared.batch.places.iter().zip(values) {
                    if let Some((id, sample)) = logged.get(&place.sample) {
                        let kept = self.report.logged.entry(*id).or_insert_with(|| sample.clone());
                        kept.log_probs[place.token] = value;
                    }
                }
            }
        }
        let began = Instant::now();
        self.comm.all_reduce(&mut sums.sums, Op::Sum)?;
        let mut max_diff = [sums.max_diff];
        self.comm.all_reduce(&mut max_diff, Op::Max)?;
        self.waited(began);
        let step = self.optimizer.step_count();
        let mut metrics = metrics(counts, &sums.sums, max_diff[0], self.reference.is_some());
        if !metrics.loss.is_finite() {
            return Err(Error::NotFinite { step, what: "loss", value: metrics.loss });
        }
        metrics.lr = learning_rate(&self.settings.train, step, self.settings.num_optimizer_steps);
        if self.comm.size() > 1 {
            self.observation.catch_up();
        }
        let began = Instant::now();
        let grads = self.optimizer.reduce_grads(&*self.comm, self.nccl.as_ref())?;
        self.waited(began);
        self.observation.detail("reduce_grads", began, 0);
        inspect(&metrics, &grads)?;
        let began = Instant::now();
        metrics.grad_norm = self.optimizer.update(&grads, &self.settings.train, metrics.lr)?;
        self.observation.detail("optimizer", began, 0);
        Ok(metrics)
    }

    /// Counts the time since `began` as waiting for other ranks.
    fn waited(&mut self, began: Instant) {
        if self.comm.size() > 1 {
            self.observation.catch_up();
            self.report.collectives += began.elapsed();
        }
    }

    /// Forward, loss and backward of one micro-batch; gradients stay in the parameters. Returns the log-probs before the
    /// rollout's first update.
    fn micro_step(&self, prepared: &Prepared, sums: &mut Sums) -> Result<Tensor> {
        let algorithm = &self.settings.algorithm;
        let (began, num_tokens) = (Instant::now(), prepared.batch.tokens.len());
        let (log_prob_r, entropy_r) = log_probs(&self.model, &prepared.batch, self.settings.temperature)?;
        let detached_r = log_prob_r.f_detach()?;
        let old_r = prepared.old_log_prob_r.as_ref().unwrap_or(&detached_r);
        let policy = policy_loss(&log_prob_r, old_r, &prepared.advantage_r, Clip::from(algorithm))?;
        let mut loss_r = policy.loss_r.shallow_clone();
        if algorithm.entropy_coef != 0.0 {
            loss_r = loss_r.f_sub(&entropy_r.f_mul_scalar(algorithm.entropy_coef)?)?;
        }
        let mut kl_r = None;
        if let Some(ref_r) = &prepared.ref_log_prob_r {
            let estimate_r = approx_kl(&log_prob_r, ref_r, algorithm.kl_loss_type)?;
            loss_r = loss_r.f_add(&estimate_r.f_mul_scalar(algorithm.kl_loss_coef)?)?;
            kl_r = Some(estimate_r);
        }
        let loss = loss_r.f_mul(&prepared.coefficient_r)?.f_sum(Kind::Float)?;
        self.observation.detail("forward", began, num_tokens);
        let began = Instant::now();
        loss.f_backward()?;
        self.observation.detail("backward", began, num_tokens);
        let mut add = |place: usize, value_r: &Tensor| sums.add(place, value_r, &prepared.coefficient_r);
        add(LOSS, &loss_r)?;
        add(PG_LOSS, &policy.loss_r)?;
        add(ENTROPY, &entropy_r)?;
        add(CLIPPED, &policy.clipped_r)?;
        add(PPO_KL, &old_r.f_sub(&detached_r)?)?;
        if let Some(kl_r) = &kl_r {
            add(KL_LOSS, kl_r)?;
        }
        sums.add_differences(old_r, &prepared.rollout_log_prob_r)?;
        let start_entropy_r = prepared.old_entropy_r.as_ref().unwrap_or(&entropy_r);
        sums.add_sample_means(prepared, old_r, start_entropy_r)?;
        Ok(old_r.shallow_clone())
    }
}

impl Sums {
    fn add(&mut self, place: usize, value_r: &Tensor, coefficient_r: &Tensor) -> Result<()> {
        let weighted = value_r.f_detach()?.f_to_kind(Kind::Double)?.f_mul(coefficient_r)?;
        self.sums[place] += weighted.f_sum(Kind::Double)?.f_double_value(&[])?;
        Ok(())
    }

    fn add_sample_means(&mut self, prepared: &Prepared, old_r: &Tensor, entropy_r: &Tensor) -> Result<()> {
        let coefficient_r = &prepared.mean_coefficient_r;
        self.add(LOG_PROBS, old_r, coefficient_r)?;
        self.add(ADVANTAGES, &prepared.advantage_r, coefficient_r)?;
        self.add(START_ENTROPY, entropy_r, coefficient_r)?;
        if let Some(ref_r) = &prepared.ref_log_prob_r {
            self.add(REF_LOG_PROBS, ref_r, coefficient_r)?;
        }
        let known_r = prepared.rollout_log_prob_r.f_isnan()?.f_logical_not()?;
        let rollout_r = prepared.rollout_log_prob_r.f_nan_to_num(0.0, None::<f64>, None::<f64>)?;
        self.add(ROLLOUT_LOG_PROBS, &rollout_r, coefficient_r)?;
        self.add(ROLLOUT_COEFFICIENTS, &known_r, coefficient_r)
    }

    /// |log-prob - rollout log-prob| of the rows whose rollout recorded one.
    fn add_differences(&mut self, log_prob_r: &Tensor, rollout_log_prob_r: &Tensor) -> Result<()> {
        let diff_r = log_prob_r.f_sub(rollout_log_prob_r)?.f_abs()?.f_to_kind(Kind::Double)?;
        let known = diff_r.f_isnan()?.f_logical_not()?;
        let diff_r = diff_r.f_masked_select(&known)?;
        if diff_r.numel() > 0 {
            self.sums[ABS_DIFF] += diff_r.f_sum(Kind::Double)?.f_double_value(&[])?;
            self.sums[ABS_DIFF_COUNT] += diff_r.numel() as f64;
            self.max_diff = self.max_diff.max(diff_r.f_max()?.f_double_value(&[])?);
        }
        Ok(())
    }
}

fn metrics(counts: &StepMetrics, sums: &[f64; NUM_SUMS], max_diff: f64, has_reference: bool) -> StepMetrics {
    let known = sums[ROLLOUT_COEFFICIENTS];
    StepMetrics {
        loss: sums[LOSS],
        pg_loss: sums[PG_LOSS],
        kl_loss: sums[KL_LOSS],
        entropy: sums[ENTROPY],
        clip_fraction: sums[CLIPPED],
        ppo_kl: sums[PPO_KL],
        log_prob_abs_diff: sums[ABS_DIFF] / sums[ABS_DIFF_COUNT].max(1.0),
        log_prob_abs_diff_max: max_diff,
        log_probs: sums[LOG_PROBS],
        rollout_log_probs: (known > 0.0).then(|| sums[ROLLOUT_LOG_PROBS] / known),
        ref_log_probs: has_reference.then_some(sums[REF_LOG_PROBS]),
        advantages: sums[ADVANTAGES],
        start_entropy: sums[START_ENTROPY],
        ..counts.clone()
    }
}
