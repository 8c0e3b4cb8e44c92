//! One optimizer step of the policy: forward and backward of every micro-batch, sums over the ranks, clipping, update.

use std::time::Instant;

use slime_comm::{Collectives, Op};
use slime_config::{LossType, OnFailure, OnNotFinite};
use slime_record::SampleId;
use tch::{Device, Tensor};

use crate::out_of_memory::Phase;
use crate::plan::Plan;
use crate::schedule::learning_rate;
use crate::tally::{Peak, Stat, Tally};
use crate::trainer::Role;
use crate::{Error, NotFinite, Result, Scored, StepMetrics, Trainer};

impl Trainer {
    /// The optimizer step `at` of the rollout; fills in the numbers of `metrics`. A step that is left out has none.
    pub(crate) fn train_step(
        &mut self,
        at: usize,
        plan: &Plan,
        mean_weight: f64,
        metrics: &mut StepMetrics,
        inspect: &mut crate::trainer::Inspect<'_>,
    ) -> Result<()> {
        let result = self.update_policy(at, plan, mean_weight, metrics, inspect);
        if self.skips(plan, result)? {
            self.actor.optimizer.zero_grads()?;
            self.rescale_fp8(Role::Actor, false)?;
            (metrics.is_update, metrics.is_skipped) = (false, true);
        }
        Ok(())
    }

    /// Whether an optimizer step is to be left out, which is then told; every rank comes to the same answer.
    pub(crate) fn skips(&mut self, plan: &Plan, result: Result<()>) -> Result<bool> {
        let mut found = match result {
            Ok(()) => return Ok(false),
            Err(Error::NotFinite(found)) => found,
            Err(error) => return Err(error),
        };
        if found.samples.is_empty() {
            found.samples = plan.scored.iter().map(Scored::id).collect();
        }
        if self.settings.checks.on_not_finite == OnNotFinite::Fail {
            return Err(Error::NotFinite(found));
        }
        self.num_skipped += 1;
        if self.comm.rank() == 0 {
            let num = self.num_skipped;
            tracing::warn!("{found}\nit is left out, as the {num}. step since the start");
        }
        self.report.skipped.push(found);
        Ok(true)
    }

    fn update_policy(
        &mut self,
        at: usize,
        plan: &Plan,
        mean_weight: f64,
        metrics: &mut StepMetrics,
        inspect: &mut crate::trainer::Inspect<'_>,
    ) -> Result<()> {
        self.actor.optimizer.zero_grads()?;
        let mut tally = Tally::new();
        let (mut parts, mut old) = (Vec::new(), Vec::new());
        self.train_batches(Role::Actor, &plan.batches, &mut |trainer, at, hidden| {
            // What the micro-batch before left, which is there by now.
            tally.flush()?;
            let objective = trainer.objective(&plan.batches[at], hidden, mean_weight, &mut tally)?;
            parts.push(objective.parts);
            old.push(objective.log_prob_r);
            Ok(objective.loss)
        })?;
        tally.flush()?;
        self.keep_logged(plan, &old)?;
        let began = Instant::now();
        tally.reduce(&*self.dp_cp)?;
        self.waited(began);
        let began = Instant::now();
        // Other stages than the last have counted nothing, and the first are here when the last are not.
        tally.reduce(&*self.pp)?;
        self.report.stage_wait += began.elapsed();
        let step = self.actor.optimizer.step_count();
        let loss = tally.sum(Stat::Loss);
        if !self.is_finite_everywhere(loss)? {
            let samples = self.offenders(plan, &parts)?;
            return Err(Error::NotFinite(NotFinite { step, what: "loss", value: loss, samples }));
        }
        self.fill(metrics, &tally);
        self.check(at, &tally, metrics)?;
        metrics.lr = learning_rate(&self.settings.train, step, self.settings.num_optimizer_steps);
        if self.comm.size() > 1 {
            self.observation.catch_up();
        }
        let began = Instant::now();
        self.phase = Phase::ReduceGrads;
        let grads = self.actor.optimizer.reduce_grads()?;
        self.waited(began);
        self.observation.detail("reduce_grads", began, 0);
        inspect(metrics, &grads)?;
        let began = Instant::now();
        self.phase = Phase::Optimizer;
        metrics.grad_norm = self.actor.optimizer.update(&grads, &self.settings.train, metrics.lr)?;
        self.rescale_fp8(Role::Actor, true)?;
        self.observation.detail("optimizer", began, 0);
        Ok(())
    }

    /// Whether a number that ranks with the same samples computed is finite on all of them.
    pub(crate) fn is_finite_everywhere(&self, value: f64) -> Result<bool> {
        let mut is_bad = [f64::from(u8::from(!value.is_finite()))];
        if self.policy().params().parallel().is_some() {
            self.comm.all_reduce(&mut is_bad, Op::Max)?;
        }
        Ok(is_bad == [0.0])
    }

    /// Keeps the log-probs of logged samples, from those of every micro-batch.
    fn keep_logged(&mut self, plan: &Plan, old: &[Tensor]) -> Result<()> {
        let logged = plan.batches.iter().zip(old);
        for (prepared, log_prob_r) in
            logged.filter(|(prepared, log_prob_r)| prepared.is_logged && log_prob_r.numel() > 0)
        {
            let values =
                Vec::<f32>::try_from(log_prob_r.f_to_device(Device::Cpu)?.f_to_kind(tch::Kind::Float)?)?;
            for (place, value) in prepared.batch.places.iter().zip(values) {
                if let Some((id, sample)) = plan.logged.get(&place.sample) {
                    let kept = self.report.logged.entry(*id).or_insert_with(|| sample.clone());
                    kept.log_probs[place.token] = value;
                }
            }
        }
        Ok(())
    }

    /// The samples, on any rank, whose part of the loss is not a number.
    fn offenders(&self, plan: &Plan, parts: &[Tensor]) -> Result<Vec<SampleId>> {
        let mut marks = vec![0.0_f64; plan.scored.len()];
        let is_pair = self.settings.algorithm.has_pairs();
        for (prepared, parts) in plan.batches.iter().zip(parts) {
            let values = Vec::<f64>::try_from(parts.f_to_device(Device::Cpu)?.f_to_kind(tch::Kind::Double)?)?;
            let samples: Vec<usize> = if is_pair {
                prepared.sequences.samples().iter().copied().filter(|i| i.is_multiple_of(2)).collect()
            } else {
                prepared.batch.places.iter().map(|place| place.sample).collect()
            };
            for (sample, _) in samples.iter().zip(&values).filter(|(_, value)| !value.is_finite()) {
                marks[*sample] = 1.0;
                if is_pair {
                    marks[sample + 1] = 1.0;
                }
            }
        }
        self.dp.all_reduce(&mut marks, Op::Max)?;
        self.pp.all_reduce(&mut marks, Op::Max)?;
        let marked = plan.scored.iter().zip(marks).filter(|(_, mark)| *mark > 0.0);
        Ok(marked.map(|(scored, _)| Scored::id(scored)).collect())
    }

    /// What must hold of an optimizer step before its update (`[checks]`).
    fn check(&self, at: usize, tally: &Tally, metrics: &StepMetrics) -> Result<()> {
        let checks = &self.settings.checks;
        let mut problems = Vec::new();
        let is_policy = self.settings.algorithm.loss == LossType::Policy;
        let moved = tally.most(Peak::OldDiff);
        if checks.first_step && at == 0 && is_policy && moved != 0.0 {
            problems.push(format!(
                "before the rollout's first update log-probs differ from the old ones by up to {moved:e} nats, not 0"
            ));
        }
        let is_first = self.num_rollouts == 0 && at == 0 && self.settings.reference_is_start;
        let apart = tally.most(Peak::RefDiff);
        if checks.first_step && is_first && apart != 0.0 {
            problems.push(format!(
                "before the run's first update log-probs differ from those of a reference with the same weights by up to \
                 {apart:e} nats, not 0"
            ));
        }
        if let Some(bound) = checks.max_mismatch
            && metrics.rollout_log_probs.is_some()
            && metrics.log_prob_abs_diff > bound
        {
            let got = metrics.log_prob_abs_diff;
            problems.push(format!(
                "log-probs of training and generation differ by {got:e} nats on average, more than checks.max_mismatch {bound}"
            ));
        }
        match checks.on_failure {
            OnFailure::Fail if !problems.is_empty() => Err(Error::Check { problem: problems.join("; ") }),
            _ => {
                for problem in &problems {
                    tracing::warn!("{problem}");
                }
                Ok(())
            }
        }
    }
}
