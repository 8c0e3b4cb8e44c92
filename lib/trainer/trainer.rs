//! A rollout's worth of training: what stays fixed, advantages, then the optimizer steps.

use std::sync::Arc;
use std::time::Instant;

use slime_comm::{Axis, Communicator, Single};
use slime_config::{LossType, Moe, RoutingReplay};
use slime_model::{Model, Parallel};
use tch::Device;

use crate::flops::forward_flops;
use crate::gradient_groups::GradientGroups;
use crate::optimizer::Gradients;
use crate::out_of_memory::Phase;
use crate::plan::Plan;
use crate::{Error, Observation, Optimizer, Report, Result, Scored, Settings, StepMetrics};

/// The models of a run: the one that is trained, and those that it is compared with.
#[derive(Debug)]
pub struct Roles {
    /// What the run is about.
    pub policy: Model,
    /// The policy of the KL term and of DPO; without one that of a policy with adapters is itself without them.
    pub reference: Option<Model>,
    /// Whose log-probs the policy is drawn to.
    pub teacher: Option<Model>,
    /// The values of PPO; it has a value head and is trained too.
    pub critic: Option<Model>,
}

impl From<Model> for Roles {
    fn from(policy: Model) -> Self {
        Self { policy, reference: None, teacher: None, critic: None }
    }
}

/// The policy of the KL term and of DPO.
#[derive(Debug)]
pub(crate) enum Reference {
    /// A model of its own.
    Other(Box<Model>),
    /// The policy without its adapters.
    Base,
}

/// A model with its optimizer.
#[derive(Debug)]
pub(crate) struct Trained {
    pub model: Model,
    pub optimizer: Optimizer,
}

/// Which of the models that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Actor,
    Critic,
}

/// One rank of the trainer. Every rank is given the same samples; its data-parallel share of them it computes together with
/// the ranks that its models are split over.
pub struct Trainer {
    pub(crate) actor: Trained,
    pub(crate) critic: Option<Trained>,
    pub(crate) reference: Option<Reference>,
    pub(crate) teacher: Option<Model>,
    pub(crate) comm: Arc<dyn Communicator>,
    /// The ranks that have the samples between them.
    pub(crate) dp: Arc<dyn Communicator>,
    /// Those, and with each those that have its tokens between them.
    pub(crate) dp_cp: Arc<dyn Communicator>,
    /// The ranks that share heads, widths and vocabulary.
    pub(crate) tp: Arc<dyn Communicator>,
    /// The ranks that have the layers between them; of them the last computes the loss.
    pub(crate) pp: Arc<dyn Communicator>,
    pub(crate) settings: Settings,
    pub(crate) observation: Observation,
    pub(crate) report: Report,
    /// Rollouts trained since the start of the run.
    pub(crate) num_rollouts: u64,
    /// Whether it was said that a sample exceeds the budget of a micro-batch.
    pub(crate) has_told_of_longer: bool,
    /// Whether it was said that a step has fewer micro-batches than stages.
    pub(crate) has_told_of_few: bool,
    /// What is being done.
    pub(crate) phase: Phase,
    /// Optimizer steps left out since the start of this process.
    pub(crate) num_skipped: u64,
}

/// A look at an optimizer step before its update: its numbers and the reduced gradients.
pub(crate) type Inspect<'a> = dyn FnMut(&StepMetrics, &Gradients) -> Result<()> + 'a;

impl Trainer {
    /// A trainer with fresh moments.
    ///
    /// # Errors
    /// [`Error::Role`] when the configured formulas need a model that is not there; parameters of another dtype than
    /// f32 and bf16, or no room; ranks with GPUs that cannot meet; patterns of `train.freeze` that do not fit the model.
    pub fn new(roles: impl Into<Roles>, comm: Arc<dyn Communicator>, settings: Settings) -> Result<Self> {
        let Roles { mut policy, mut reference, teacher, mut critic } = roles.into();
        if let Some(fp8) = &settings.train.fp8 {
            // A reference too, so that a policy with the same weights is at no distance from it.
            let computed = [Some(&mut policy), reference.as_mut(), critic.as_mut()];
            computed.into_iter().flatten().try_for_each(|model| model.set_fp8(fp8))?;
        }
        if let Some(group_size) = settings.int4_group_size {
            let computed = [Some(&mut policy), reference.as_mut()];
            computed.into_iter().flatten().try_for_each(|model| model.set_fake_int4(group_size))?;
        }
        policy.params_mut().freeze(&settings.train.freeze)?;
        let algorithm = &settings.algorithm;
        // Heads are the last stage's.
        let base =
            || (algorithm.has_reference() && policy.params().has_adapters()).then_some(Reference::Base);
        let reference = reference.map(|model| Reference::Other(Box::new(model))).or_else(base);
        let has_head = |model: &Model| model.has_value_head() || !model.stage().is_last();
        for (is_there, is_needed, role) in [
            (reference.is_some(), algorithm.has_reference(), "a reference"),
            (critic.as_ref().is_some_and(has_head), algorithm.has_critic(), "a critic with a value head"),
            (has_head(&policy), algorithm.loss == LossType::RewardModel, "a policy with a value head"),
        ] {
            if is_needed && !is_there {
                return Err(Error::Role { role });
            }
        }
        if algorithm.routing_replay != RoutingReplay::None && policy.config().moe.is_none() {
            tracing::warn!("algorithm.routing_replay has no effect: the model has no experts");
        }
        let single = || Arc::new(Single) as Arc<dyn Communicator>;
        let (dp, dp_cp, tp, pp) = match policy.params().parallel() {
            None => (comm.clone(), comm.clone(), single(), single()),
            Some(parallel) => {
                let split = |axis| parallel.mesh().split(&*comm, axis);
                (split(Axis::Dp)?, split(Axis::DpCp)?, split(Axis::Tp)?, split(Axis::Pp)?)
            }
        };
        let trained = |model: Model| {
            let groups = Arc::new(GradientGroups::new(&comm, model.params())?);
            let optimizer = Optimizer::new(model.params(), groups, settings.train.optimizer_offload)?;
            Ok::<_, Error>(Trained { model, optimizer })
        };
        let trained = |model| trained(model).map_err(|e| Phase::OptimizerState.explain(e, &settings.train));
        let (actor, critic) = (trained(policy)?, critic.map(trained).transpose()?);
        let (observation, report) = (Observation::default(), Report::default());
        let trainer = Self {
            actor,
            critic,
            reference,
            teacher,
            comm,
            dp,
            dp_cp,
            tp,
            pp,
            settings,
            observation,
            report,
            num_rollouts: 0,
            has_told_of_longer: false,
            has_told_of_few: false,
            num_skipped: 0,
            phase: Phase::OptimizerState,
        };
        trainer.check_mtp().map(|()| trainer)
    }

    /// What to look at in the rollouts from now on.
    pub fn observe(&mut self, observation: Observation) {
        let gpu = match self.policy().params().device() {
            Device::Cuda(number) => Some(number),
            _ => None,
        };
        self.observation = Observation { gpu, ..observation };
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What was seen in the last rollout on this rank.
    pub fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }

    /// The policy.
    pub fn policy(&self) -> &Model {
        &self.actor.model
    }

    /// The model whose head the reference has.
    pub(crate) fn reference(&self) -> Option<&Model> {
        self.reference.as_ref().map(|reference| match reference {
            Reference::Other(model) => &**model,
            Reference::Base => self.policy(),
        })
    }

    /// The critic, where there is one.
    pub fn critic(&self) -> Option<&Model> {
        self.critic.as_ref().map(|critic| &critic.model)
    }

    /// Trains on one rollout. Samples are taken in the order of their ids, so the order of `scored` does not matter.
    ///
    /// # Errors
    /// [`Error::NoSamples`], [`Error::Batch`], a broken sample, a number that is not finite, a check that does not hold,
    /// a failed collective.
    pub fn train_rollout(&mut self, scored: &[Scored]) -> Result<Vec<StepMetrics>> {
        self.train_rollout_with(scored, |_, _| Ok(()))
    }

    /// The same; `inspect` sees the metrics and the reduced gradients (before clipping) of every optimizer step of the
    /// policy before its update, on every rank.
    ///
    /// # Errors
    /// As [`Self::train_rollout`], and those of `inspect`.
    pub fn train_rollout_with(
        &mut self,
        scored: &[Scored],
        mut inspect: impl FnMut(&StepMetrics, &Gradients) -> Result<()>,
    ) -> Result<Vec<StepMetrics>> {
        let result = self.train_on(scored, &mut inspect);
        self.explained(result)
    }

    fn train_on(&mut self, scored: &[Scored], inspect: &mut Inspect<'_>) -> Result<Vec<StepMetrics>> {
        self.phase = Phase::FixedLogProbs;
        self.report = Report::default();
        let began = Instant::now();
        let mut plans = self.plan(scored)?;
        let batches = || plans.iter().flat_map(|plan| &plan.batches);
        let flops: f64 = batches().map(|b| forward_flops(self.policy().config(), &b.batch)).sum();
        let sharing = self.policy().params().parallel().map_or(1, |parallel| {
            [Axis::Tp, Axis::Cp, Axis::Pp].map(|axis| parallel.mesh().axis_size(axis)).iter().product()
        });
        self.report.forward_flops = flops / sharing as f64;
        self.report.data_preprocess = self.observation.phase("data_preprocess", began);
        self.fix_log_probs(&mut plans)?;
        self.fix_values(&mut plans)?;
        let began = Instant::now();
        let mean_weight = self.estimate(&mut plans)?;
        self.report.advantages = self.observation.phase("advantages", began);
        let mut steps = plans.iter().map(|plan| plan.counts.clone()).collect::<Vec<_>>();
        self.phase = Phase::Critic;
        self.train_critic(&plans, &mut steps)?;
        if !self.is_critic_only() {
            let began = Instant::now();
            for (at, (plan, metrics)) in plans.iter().zip(&mut steps).enumerate() {
                self.train_step(at, plan, mean_weight, metrics, inspect)?;
            }
            self.report.actor_train = self.observation.phase("actor_train", began);
        }
        self.num_rollouts += 1;
        self.update_reference()?;
        if let Device::Cuda(number) = self.policy().params().device() {
            // What a driver does not tell is left out.
            let memory = slime_cuda::Device::open(number).and_then(|device| device.memory());
            self.report.gpu_bytes = memory.ok().map(|(free, total)| total - free);
        }
        Ok(steps)
    }

    /// The experts of the policy, where samples say which of them their tokens go to.
    pub(crate) fn replayed(&self) -> Option<&Moe> {
        let moe = self.policy().config().moe.as_ref();
        moe.filter(|_| self.settings.algorithm.replays_rollout())
    }

    /// Whether the running rollout trains the critic alone.
    fn is_critic_only(&self) -> bool {
        self.critic.is_some() && self.num_rollouts < self.settings.critic.num_critic_only_steps
    }

    /// The reference becomes the policy when it is due.
    fn update_reference(&mut self) -> Result<()> {
        let due = self.settings.ref_update_interval.is_some_and(|n| self.num_rollouts.is_multiple_of(n));
        if let (true, Some(Reference::Other(reference))) = (due, &mut self.reference) {
            let began = Instant::now();
            reference.params_mut().copy_from(self.actor.model.params())?;
            self.report.ref_model_update = self.observation.phase("ref_model_update", began);
        }
        Ok(())
    }

    /// Every plan's batches.
    pub(crate) fn batches(plans: &mut [Plan]) -> impl Iterator<Item = &mut crate::prepared::Prepared> {
        plans.iter_mut().flat_map(|plan| &mut plan.batches)
    }

    /// Whether this rank tells what the ranks that compute the loss of the same samples all know.
    pub(crate) fn speaks(&self) -> bool {
        let parallel = self.policy().params().parallel();
        let is_first = |parallel: &Parallel| {
            let mesh = parallel.mesh();
            [Axis::Tp, Axis::Cp].iter().all(|axis| mesh.coordinate(*axis, self.comm.rank()) == 0)
        };
        parallel.is_none_or(is_first) && self.policy().stage().is_last()
    }

    /// Counts the time since `began` as waiting for other ranks.
    pub(crate) fn waited(&mut self, began: Instant) {
        if self.comm.size() > 1 {
            self.observation.catch_up();
            self.report.collectives += began.elapsed();
        }
    }
}
