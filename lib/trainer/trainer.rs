//! A rollout's worth of training: advantages, log-probs that stay fixed, then the optimizer steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use slime_comm::{Communicator, Nccl};
use slime_config::{Algorithm, Train};
use slime_model::Model;
use slime_record::Sample;
use tch::{Device, Tensor};

use crate::advantage;
use crate::log_probs::log_probs;
use crate::loss_reducer::{Weighted, coefficients};
use crate::packing::{MicroBatch, pack};
use crate::{Error, Optimizer, Result, StepMetrics};

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
}

/// One micro-batch of this rank with everything about its rows that does not change during the rollout.
pub(crate) struct Prepared {
    pub batch: MicroBatch,
    /// Coefficient of each row in the loss.
    pub coefficient_r: Tensor,
    pub advantage_r: Tensor,
    /// Log-probs before the first update; `None` with one optimizer step, where they are the current ones.
    pub old_log_prob_r: Option<Tensor>,
    pub ref_log_prob_r: Option<Tensor>,
    /// NaN where the rollout did not record any.
    pub rollout_log_prob_r: Tensor,
}

/// One optimizer step of this rank.
pub(crate) struct Plan {
    pub batches: Vec<Prepared>,
    /// The counts of the whole global batch, filled in before any work.
    pub counts: StepMetrics,
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
        Ok(Self { model, reference, optimizer, comm, nccl, settings })
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
        let plans = self.plan(scored)?;
        plans.iter().map(|plan| self.train_step(plan, &mut inspect)).collect()
    }

    /// Everything that is computed with the weights of the rollout's start.
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
        (0..steps)
            .map(|step| {
                let range = step * size..(step + 1) * size;
                self.plan_step(step, &sorted[range.clone()], &advantages[range])
            })
            .collect()
    }

    fn plan_step(&self, step: usize, scored: &[&Scored], advantages: &[f32]) -> Result<Plan> {
        let samples: Vec<Sample> = scored.iter().map(|scored| scored.sample.clone()).collect();
        self.check_vocabulary(&samples)?;
        let max_tokens = self.settings.train.max_tokens_per_gpu as usize;
        let mut ranks = pack(&samples, max_tokens, self.comm.size())?;
        let weighted: Vec<Weighted> =
            samples.iter().map(|s| Weighted { loss_mask: &s.loss_mask, weight: s.weight }).collect();
        let coefficients = coefficients(&weighted, self.settings.algorithm.loss_reducer);
        let counts = counts(scored, &ranks);
        if counts.num_trained_tokens == 0 {
            return Err(Error::NothingTrained { step });
        }
        let batches = ranks
            .swap_remove(self.comm.rank())
            .into_iter()
            .map(|batch| self.prepare(batch, &samples, &coefficients, advantages))
            .collect::<Result<_>>()?;
        Ok(Plan { batches, counts })
    }

    fn prepare(
        &self,
        batch: MicroBatch,
        samples: &[Sample],
        coefficients: &[f64],
        advantages: &[f32],
    ) -> Result<Prepared> {
        let device = self.model.params().device();
        let rows = |value: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> =
                batch.places.iter().map(|place| value(place.sample, place.token)).collect();
            Tensor::f_from_slice(&values)?.f_to_device(device)
        };
        let coefficient_r = rows(&|sample, _| coefficients[sample] as f32)?;
        let advantage_r = rows(&|sample, _| advantages[sample])?;
        let rollout_log_prob_r =
            rows(&|sample, token| samples[sample].rollout_log_probs.get(token).copied().unwrap_or(f32::NAN))?;
        let fixed = |model: &Model| {
            tch::no_grad(|| Ok::<_, Error>(log_probs(model, &batch, self.settings.temperature)?.0))
        };
        let needs_old = self.settings.num_steps_per_rollout > 1;
        let old_log_prob_r = needs_old.then(|| fixed(&self.model)).transpose()?;
        let ref_log_prob_r = self.reference.as_ref().map(fixed).transpose()?;
        Ok(Prepared { batch, coefficient_r, advantage_r, old_log_prob_r, ref_log_prob_r, rollout_log_prob_r })
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

fn counts(scored: &[&Scored], ranks: &[Vec<MicroBatch>]) -> StepMetrics {
    let trained = |sample: &Sample| sample.loss_mask.iter().filter(|mask| **mask != 0).count();
    let all = || ranks.iter().flatten();
    StepMetrics {
        reward_mean: scored.iter().map(|s| f64::from(s.reward)).sum::<f64>() / scored.len() as f64,
        num_samples: scored.len(),
        num_masked_samples: scored.iter().filter(|s| trained(&s.sample) == 0).count(),
        num_trained_tokens: all().map(|batch| batch.rows.len()).sum(),
        num_forward_tokens: all().map(|batch| batch.tokens.len()).sum(),
        num_unshared_tokens: scored.iter().map(|s| s.sample.tokens.len()).sum(),
        ..StepMetrics::default()
    }
}
