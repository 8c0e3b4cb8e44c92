//! A rollout's worth of training: advantages, log-probs that stay fixed, then the optimizer steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use slime_comm::{Communicator, Nccl};
use slime_config::{Algorithm, LossReducer, Train};
use slime_model::Model;
use slime_record::{Sample, Status};
use tch::{Device, Tensor};

use crate::advantage;
use crate::flops::forward_flops;
use crate::log_probs::log_probs;
use crate::loss_reducer::{Weighted, coefficients};
use crate::packing::{MicroBatch, pack};
use crate::{Error, LoggedSample, Observation, Optimizer, Report, Result, StepMetrics};

/// A sample with its reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The sample.
    pub sample: Sample,
    /// Its reward.
    pub reward: f32,
}

/// What a trainer needs to know of the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `[train]`
    pub train: Train,
    /// `[algorithm]`
    pub algorithm: Algorithm,
    /// The sampling temperature; log-probs are those of the distribution sampled from.
    pub temperature: f64,
    /// Optimizer steps of one rollout.
    pub num_steps_per_rollout: usize,
    /// Optimizer steps of the whole run, for schedules that decay.
    pub num_optimizer_steps: u64,
}

/// One data-parallel rank of the trainer. Every rank is given the same samples and computes its share of them.
pub struct Trainer {
    pub(crate) model: Model,
    pub(crate) reference: Option<Model>,
    pub(crate) optimizer: Optimizer,
    pub(crate) comm: Arc<dyn Communicator>,
    /// Where every rank has a GPU of its own.
    pub(crate) nccl: Option<Nccl>,
    pub(crate) settings: Settings,
    pub(crate) observation: Observation,
    pub(crate) report: Report,
}

/// One micro-batch of this rank with everything about its rows that does not change during the rollout.
pub(crate) struct Prepared {
    pub batch: MicroBatch,
    /// Coefficient of each row in the loss.
    pub coefficient_r: Tensor,
    /// Coefficient of each row in a sample mean, whatever the loss has.
    pub mean_coefficient_r: Tensor,
    pub advantage_r: Tensor,
    /// Log-probs before the first update; `None` with one optimizer step, where they are the current ones.
    pub old_log_prob_r: Option<Tensor>,
    /// The entropy then.
    pub old_entropy_r: Option<Tensor>,
    pub ref_log_prob_r: Option<Tensor>,
    /// NaN where the rollout did not record any.
    pub rollout_log_prob_r: Tensor,
    /// Whether log-probs of one of its samples are kept.
    pub is_logged: bool,
}

/// One optimizer step of this rank.
pub(crate) struct Plan {
    pub batches: Vec<Prepared>,
    /// The counts of the whole global batch, filled in before any work.
    pub counts: StepMetrics,
    /// By place among the step's samples, those whose log-probs are kept.
    pub logged: BTreeMap<usize, (slime_record::SampleId, LoggedSample)>,
}

/// The coefficients of a token of each sample.
struct Coefficients {
    loss: Vec<f64>,
    mean: Vec<f64>,
}

impl Trainer {
    /// A trainer with fresh moments; `reference` is needed when `kl_loss_coef` is not 0.
    ///
    /// # Errors
    /// Parameters of another dtype than f32 and bf16, or no room; ranks with GPUs that cannot meet.
    pub fn new(
        model: Model,
        reference: Option<Model>,
        comm: Arc<dyn Communicator>,
        settings: Settings,
    ) -> Result<Self> {
        let nccl = match model.params().device() {
            Device::Cuda(device) if comm.size() > 1 => Nccl::meet(&*comm, device)?,
            _ => None,
        };
        let optimizer = Optimizer::new(model.params())?;
        let (observation, report) = (Observation::default(), Report::default());
        Ok(Self { model, reference, optimizer, comm, nccl, settings, observation, report })
    }

    /// What to look at in the rollouts from now on.
    pub fn observe(&mut self, observation: Observation) {
        let gpu = match self.model.params().device() {
            Device::Cuda(number) => Some(number),
            _ => None,
        };
        self.observation = Observation { gpu, ..observation };
    }

    /// What was seen in the last rollout on this rank.
    pub fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }

    /// The policy.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The optimizer, for checkpoints.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Trains on one rollout. Samples are taken in the order of their ids, so the order of `scored` does not matter.
    ///
    /// # Errors
    /// [`Error::NoSamples`], [`Error::Batch`], a broken sample, a loss that is not finite, a failed collective.
    pub fn train_rollout(&mut self, scored: &[Scored]) -> Result<Vec<StepMetrics>> {
        self.train_rollout_with(scored, |_, _| Ok(()))
    }

    /// The same; `inspect` sees the metrics and the reduced gradients (by storage, before clipping) of every
    /// optimizer step before its update.
    ///
    /// # Errors
    /// As [`Self::train_rollout`], and those of `inspect`.
    pub fn train_rollout_with(
        &mut self,
        scored: &[Scored],
        mut inspect: impl FnMut(&StepMetrics, &[(String, Tensor)]) -> Result<()>,
    ) -> Result<Vec<StepMetrics>> {
        self.report = Report::default();
        let began = Instant::now();
        let mut plans = self.plan(scored)?;
        let batches = || plans.iter().flat_map(|plan| &plan.batches);
        self.report.forward_flops = batches().map(|b| forward_flops(self.model.config(), &b.batch)).sum();
        self.report.data_preprocess = self.observation.phase("data_preprocess", began);
        self.fix_log_probs(&mut plans)?;
        let began = Instant::now();
        let steps = plans.iter().map(|plan| self.train_step(plan, &mut inspect)).collect::<Result<_>>()?;
        self.report.actor_train = self.observation.phase("actor_train", began);
        if let Device::Cuda(number) = self.model.params().device() {
            // What a driver does not tell is left out.
            let memory = slime_cuda::Device::open(number).and_then(|device| device.memory());
            self.report.gpu_bytes = memory.ok().map(|(free, total)| total - free);
        }
        Ok(steps)
    }

    /// Everything that is known of the rollout without a forward pass.
    fn plan(&self, scored: &[Scored]) -> Result<Vec<Plan>> {
        if scored.is_empty() {
            return Err(Error::NoSamples);
        }
        let steps = self.settings.num_steps_per_rollout.max(1);
        if !scored.len().is_multiple_of(steps) {
            return Err(Error::Batch { samples: scored.len(), steps });
        }
        let mut sorted: Vec<&Scored> = scored.iter().collect();
        sorted.sort_by_key(|scored| scored.sample.id());
        let advantages = advantages(&sorted, self.settings.algorithm.grpo_std_normalization);
        let size = scored.len() / steps;
        let logged = first_groups(&sorted, self.observation.num_logged_groups);
        (0..steps)
            .map(|step| {
                let range = step * size..(step + 1) * size;
                self.plan_step(step, &sorted[range.clone()], &advantages[range], &logged)
            })
            .collect()
    }

    /// The log-probs that stay fixed over the rollout's optimizer steps.
    fn fix_log_probs(&mut self, plans: &mut [Plan]) -> Result<()> {
        let temperature = self.settings.temperature;
        let fixed = |model: &Model, batch: &MicroBatch| tch::no_grad(|| log_probs(model, batch, temperature));
        if self.settings.num_steps_per_rollout > 1 {
            let began = Instant::now();
            for prepared in plans.iter_mut().flat_map(|plan| &mut plan.batches) {
                let (log_prob_r, entropy_r) = fixed(&self.model, &prepared.batch)?;
                (prepared.old_log_prob_r, prepared.old_entropy_r) = (Some(log_prob_r), Some(entropy_r));
            }
            self.report.log_probs = self.observation.phase("log_probs", began);
        }
        if let Some(reference) = &self.reference {
            let began = Instant::now();
            for prepared in plans.iter_mut().flat_map(|plan| &mut plan.batches) {
                prepared.ref_log_prob_r = Some(fixed(reference, &prepared.batch)?.0);
            }
            self.report.ref_log_probs = self.observation.phase("ref_log_probs", began);
        }
        Ok(())
    }

    fn plan_step(
        &self,
        step: usize,
        scored: &[&Scored],
        advantages: &[f32],
        logged_groups: &BTreeSet<(u64, u32)>,
    ) -> Result<Plan> {
        let samples: Vec<Sample> = scored.iter().map(|scored| scored.sample.clone()).collect();
        self.check_vocabulary(&samples)?;
        let max_tokens = self.settings.train.max_tokens_per_gpu as usize;
        let mut ranks = pack(&samples, max_tokens, self.comm.size())?;
        let weighted: Vec<Weighted> =
            samples.iter().map(|s| Weighted { loss_mask: &s.loss_mask, weight: s.weight }).collect();
        let coefficients = Coefficients {
            loss: coefficients(&weighted, self.settings.algorithm.loss_reducer),
            mean: coefficients(&weighted, LossReducer::SampleMean),
        };
        let counts = counts(scored, advantages, &ranks);
        let logged: BTreeMap<usize, _> = samples
            .iter()
            .enumerate()
            .filter(|(_, sample)| logged_groups.contains(&(sample.step, sample.group)))
            .map(|(i, sample)| {
                let log_probs = vec![f32::NAN; sample.response_len()];
                (i, (sample.id(), LoggedSample { tokens_hash: sample.tokens_hash(), log_probs }))
            })
            .collect();
        if counts.num_trained_tokens == 0 {
            return Err(Error::NothingTrained { step });
        }
        let batches = ranks
            .swap_remove(self.comm.rank())
            .into_iter()
            .map(|batch| {
                let is_logged = batch.places.iter().any(|place| logged.contains_key(&place.sample));
                self.prepare(batch, &samples, &coefficients, advantages, is_logged)
            })
            .collect::<Result<_>>()?;
        Ok(Plan { batches, counts, logged })
    }

    fn prepare(
        &self,
        batch: MicroBatch,
        samples: &[Sample],
        coefficients: &Coefficients,
        advantages: &[f32],
        is_logged: bool,
    ) -> Result<Prepared> {
        let device = self.model.params().device();
        let rows = |value: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> =
                batch.places.iter().map(|place| value(place.sample, place.token)).collect();
            Tensor::f_from_slice(&values)?.f_to_device(device)
        };
        let coefficient_r = rows(&|sample, _| coefficients.loss[sample] as f32)?;
        let mean_coefficient_r = rows(&|sample, _| coefficients.mean[sample] as f32)?;
        let advantage_r = rows(&|sample, _| advantages[sample])?;
        let rollout_log_prob_r =
            rows(&|sample, token| samples[sample].rollout_log_probs.get(token).copied().unwrap_or(f32::NAN))?;
        Ok(Prepared {
            batch,
            coefficient_r,
            mean_coefficient_r,
            advantage_r,
            old_log_prob_r: None,
            old_entropy_r: None,
            ref_log_prob_r: None,
            rollout_log_prob_r,
            is_logged,
        })
    }

    fn check_vocabulary(&self, samples: &[Sample]) -> Result<()> {
        let vocab_size = self.model.config().vocab_size;
        for sample in samples {
            if let Some(token) = sample.tokens.iter().find(|token| **token as usize >= vocab_size) {
                let (expected, got) = (format!("ids below {vocab_size}"), token.to_string());
                return Err(Error::Sample { id: sample.id(), field: "tokens", expected, got });
            }
        }
        Ok(())
    }
}

/// The advantage of each sample, over the groups (step, group) of the whole rollout.
fn advantages(scored: &[&Scored], std_normalization: bool) -> Vec<f32> {
    let mut groups: BTreeMap<(u64, u32), Vec<usize>> = BTreeMap::new();
    for (i, scored) in scored.iter().enumerate() {
        groups.entry((scored.sample.step, scored.sample.group)).or_default().push(i);
    }
    let mut advantages = vec![0.0; scored.len()];
    for members in groups.values() {
        let rewards: Vec<f32> = members.iter().map(|i| scored[*i].reward).collect();
        for (i, advantage) in members.iter().zip(advantage::grpo(&rewards, std_normalization)) {
            advantages[*i] = advantage;
        }
    }
    advantages
}

/// The first `num` groups (step, group) of sorted samples.
fn first_groups(sorted: &[&Scored], num: usize) -> BTreeSet<(u64, u32)> {
    let mut groups: Vec<_> = sorted.iter().map(|scored| (scored.sample.step, scored.sample.group)).collect();
    groups.dedup();
    groups.into_iter().take(num).collect()
}

fn counts(scored: &[&Scored], advantages: &[f32], ranks: &[Vec<MicroBatch>]) -> StepMetrics {
    let trained = |sample: &Sample| sample.loss_mask.iter().filter(|mask| **mask != 0).count();
    let all = || ranks.iter().flatten();
    let num = scored.len() as f64;
    let mean = |of: &dyn Fn(&Scored) -> f64| scored.iter().map(|s| of(s)).sum::<f64>() / num;
    let reward_mean = scored.iter().map(|s| f64::from(s.reward)).sum::<f64>() / scored.len() as f64;
    StepMetrics {
        reward_mean,
        reward_std: mean(&|s| (f64::from(s.reward) - reward_mean).powi(2)).sqrt(),
        normalized_reward_mean: advantages.iter().map(|advantage| f64::from(*advantage)).sum::<f64>() / num,
        response_len_mean: mean(&|s| s.sample.response_len() as f64),
        total_len_mean: mean(&|s| s.sample.tokens.len() as f64),
        truncated_ratio: mean(&|s| f64::from(u8::from(s.sample.status == Status::Truncated))),
        num_samples: scored.len(),
        num_masked_samples: scored.iter().filter(|s| trained(&s.sample) == 0).count(),
        num_trained_tokens: all().map(|batch| batch.rows.len()).sum(),
        num_forward_tokens: all().map(|batch| batch.tokens.len()).sum(),
        num_unshared_tokens: scored.iter().map(|s| s.sample.tokens.len()).sum(),
        ..StepMetrics::default()
    }
}
