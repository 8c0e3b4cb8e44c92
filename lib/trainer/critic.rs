//! The critic's optimizer steps over a rollout.

use std::time::Instant;

use slime_config::Train;
use tch::Tensor;

use crate::loss::value_loss::value_loss;
use crate::pipeline::Hidden;
use crate::plan::Plan;
use crate::prepared::Prepared;
use crate::schedule::learning_rate;
use crate::tally::{Stat, Tally};
use crate::trainer::Role;
use crate::{Error, NotFinite, Result, StepMetrics, Trainer};

impl Trainer {
    /// One optimizer step of the critic for each of the policy's, all before the policy's first.
    pub(crate) fn train_critic(&mut self, plans: &[Plan], steps: &mut [StepMetrics]) -> Result<()> {
        if self.critic.is_none() {
            return Ok(());
        }
        let began = Instant::now();
        for (plan, metrics) in plans.iter().zip(steps) {
            self.critic_step(plan, metrics)?;
        }
        self.report.critic_train = self.observation.phase("critic_train", began);
        Ok(())
    }

    fn critic_step(&mut self, plan: &Plan, metrics: &mut StepMetrics) -> Result<()> {
        let result = self.update_critic(plan, metrics);
        if self.skips(plan, result)?
            && let Some(critic) = &mut self.critic
        {
            critic.optimizer.zero_grads()?;
            self.rescale_fp8(Role::Critic, false)?;
        }
        Ok(())
    }

    fn update_critic(&mut self, plan: &Plan, metrics: &mut StepMetrics) -> Result<()> {
        let settings = &self.settings;
        let train = Train { lr: settings.critic.lr.unwrap_or(settings.train.lr), ..settings.train.clone() };
        let num_steps = settings.num_optimizer_steps;
        let mut tally = Tally::new();
        if let Some(critic) = &mut self.critic {
            critic.optimizer.zero_grads()?;
        }
        self.train_batches(Role::Critic, &plan.batches, &mut |trainer, at, hidden| {
            tally.flush()?;
            trainer.value_objective(&plan.batches[at], hidden, &mut tally)
        })?;
        tally.flush()?;
        let began = Instant::now();
        tally.reduce(&*self.dp_cp)?;
        self.waited(began);
        let began = Instant::now();
        // Other stages than the last have counted nothing, and the first are here when the last are not.
        tally.reduce(&*self.pp)?;
        self.report.stage_wait += began.elapsed();
        let loss = tally.sum(Stat::ValueLoss);
        let is_finite = self.is_finite_everywhere(loss)?;
        let Some(critic) = &mut self.critic else { return Ok(()) };
        let step = critic.optimizer.step_count();
        if !is_finite {
            let (what, samples) = ("value loss", vec![]);
            return Err(Error::NotFinite(NotFinite { step, what, value: loss, samples }));
        }
        let lr = learning_rate(&train, step, num_steps);
        let began = Instant::now();
        let grads = critic.optimizer.reduce_grads()?;
        if self.comm.size() > 1 {
            self.observation.catch_up();
            self.report.collectives += began.elapsed();
        }
        let grad_norm = critic.optimizer.update(&grads, &train, lr)?;
        self.rescale_fp8(Role::Critic, true)?;
        let mut put = |name, value| metrics.extra.insert(name, value);
        put("train/critic-value_loss", loss);
        put("train/critic-value_clipfrac", tally.sum(Stat::ValueClipped));
        put("train/critic-grad_norm", grad_norm);
        put("train/critic-lr-pg_0", lr);
        Ok(())
    }

    /// The value loss of a micro-batch, with the reducer's denominator.
    fn value_objective(&self, prepared: &Prepared, hidden: &Hidden, tally: &mut Tally) -> Result<Tensor> {
        let (Some(critic), Some(old_r), Some(return_r)) =
            (&self.critic, &prepared.known.old_value_r, &prepared.known.return_r)
        else {
            return Err(Error::Role { role: "a critic with a value head" });
        };
        let values_r = prepared.share.all(&critic.model.values(&hidden.rows_rd)?)?;
        let loss = value_loss(&values_r, old_r, return_r, self.settings.critic.value_clip)?;
        tally.counted_if(prepared.share.counts_all(), |tally| {
            tally.add(Stat::ValueLoss, &loss.loss_r, &prepared.known.coefficient_r)?;
            tally.add(Stat::ValueClipped, &loss.clipped_r, &prepared.known.coefficient_r)
        })?;
        Ok(loss.loss_r.f_mul(&prepared.known.coefficient_r)?.f_sum(old_r.kind())?)
    }
}
