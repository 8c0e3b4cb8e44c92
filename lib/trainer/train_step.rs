//! One optimizer step: forward and backward of every micro-batch, sums over the ranks, clipping, update.

use slime_comm::{Collectives, Op};
use tch::{Kind, Tensor};

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
const NUM_SUMS: usize = 8;

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
        for prepared in &plan.batches {
            self.micro_step(prepared, &mut sums)?;
            self.optimizer.accumulate()?;
        }
        self.comm.all_reduce(&mut sums.sums, Op::Sum)?;
        let mut max_diff = [sums.max_diff];
        self.comm.all_reduce(&mut max_diff, Op::Max)?;
        let step = self.optimizer.step_count();
        let mut metrics = metrics(&plan.counts, &sums.sums, max_diff[0]);
        if !metrics.loss.is_finite() {
            return Err(Error::NotFinite { step, what: "loss", value: metrics.loss });
        }
        metrics.lr = learning_rate(&self.settings.train, step, self.settings.num_optimizer_steps);
        let grads = self.optimizer.reduce_grads(&*self.comm, self.nccl.as_ref())?;
        inspect(&metrics, &grads)?;
        metrics.grad_norm = self.optimizer.update(&grads, &self.settings.train, metrics.lr)?;
        Ok(metrics)
    }

    /// Forward, loss and backward of one micro-batch; gradients stay in the parameters.
    fn micro_step(&self, prepared: &Prepared, sums: &mut Sums) -> Result<()> {
        let algorithm = &self.settings.algorithm;
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
        loss.f_backward()?;
        let mut add = |place: usize, value_r: &Tensor| -> Result<()> {
            let weighted = value_r.f_detach()?.f_to_kind(Kind::Double)?.f_mul(&prepared.coefficient_r)?;
            sums.sums[place] += weighted.f_sum(Kind::Double)?.f_double_value(&[])?;
            Ok(())
        };
        add(LOSS, &loss_r)?;
        add(PG_LOSS, &policy.loss_r)?;
        add(ENTROPY, &entropy_r)?;
        add(CLIPPED, &policy.clipped_r)?;
        add(PPO_KL, &old_r.f_sub(&detached_r)?)?;
        if let Some(kl_r) = &kl_r {
            add(KL_LOSS, kl_r)?;
        }
        sums.add_differences(old_r, &prepared.rollout_log_prob_r)
    }
}

impl Sums {
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

fn metrics(counts: &StepMetrics, sums: &[f64; NUM_SUMS], max_diff: f64) -> StepMetrics {
    StepMetrics {
        loss: sums[LOSS],
        pg_loss: sums[PG_LOSS],
        kl_loss: sums[KL_LOSS],
        entropy: sums[ENTROPY],
        clip_fraction: sums[CLIPPED],
        ppo_kl: sums[PPO_KL],
        log_prob_abs_diff: sums[ABS_DIFF] / sums[ABS_DIFF_COUNT].max(1.0),
        log_prob_abs_diff_max: max_diff,
        ..counts.clone()
    }
}
