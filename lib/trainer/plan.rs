//! Everything that is known of a rollout without a forward pass: which rank computes what, coefficients, group
//! statistics.

use std::collections::{BTreeMap, BTreeSet};

use crate::advantage;
use crate::flops::forward_flops;
use crate::loss::reducer::{Weighted, coefficients};
use crate::micro_batch::{MicroBatch, Rows};
use crate::packing::{Packing, first_longer, pack};
use crate::prepared::Prepared;
use crate::{Error, LoggedSample, Result, Scored, StepMetrics, Trainer};
use slime_config::{AdvantageEstimator, LossReducer, LossType};
use slime_model::Parallel;
use slime_record::{Sample, SampleId, Status};

/// One optimizer step of this rank.
pub(crate) struct Plan {
    pub batches: Vec<Prepared>,
    /// The samples of the whole global batch.
    pub scored: Vec<Scored>,
    /// What the group says about each of them.
    pub relative: Vec<Relative>,
    /// The counts of the whole global batch, filled in before any work.
    pub counts: StepMetrics,
    /// By place among the step's samples, those whose log-probs are kept.
    pub logged: BTreeMap<usize, (SampleId, LoggedSample)>,
}

/// A sample's advantage relative to its group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relative {
    /// From the reward of the whole answer; the reward itself where the estimator compares nothing.
    pub outcome: f32,
    /// From the rewards of single tokens: one for each trained token, or empty.
    pub process: Vec<f32>,
}

/// The coefficients of a token of each sample.
pub(crate) struct Coefficients {
    pub loss: Vec<f64>,
    pub mean: Vec<f64>,
}

impl Trainer {
    /// The optimizer steps of a rollout.
    pub(crate) fn plan(&mut self, scored: &[Scored]) -> Result<Vec<Plan>> {
        if scored.is_empty() {
            return Err(Error::NoSamples);
        }
        let steps = self.settings.num_steps_per_rollout.max(1);
        if !scored.len().is_multiple_of(steps) {
            return Err(Error::Batch { samples: scored.len(), steps });
        }
        if self.settings.algorithm.has_pairs() && !(scored.len() / steps).is_multiple_of(2) {
            return Err(Error::Pairs { samples: scored.len() / steps });
        }
        let mut sorted: Vec<&Scored> = scored.iter().collect();
        sorted.sort_by_key(|scored| scored.id());
        let vocab_size = self.policy().config().vocab_size;
        sorted.iter().try_for_each(|scored| scored.check(vocab_size, self.settings.truncates))?;
        if let Some(moe) = self.replayed() {
            sorted.iter().try_for_each(|scored| scored.check_routes(moe))?;
        }
        self.tell_of_longer(&sorted);
        let relative = self.relative(&sorted)?;
        let size = scored.len() / steps;
        let logged = first_groups(&sorted, self.observation.num_logged_groups);
        let plans = (0..steps).map(|step| {
            let range = step * size..(step + 1) * size;
            self.plan_step(step, &sorted[range.clone()], &relative[range], &logged)
        });
        let plans = plans.collect::<Result<Vec<_>>>()?;
        self.tell_of_few(&plans);
        Ok(plans)
    }

    /// Says once that a step has fewer micro-batches than the pipeline has stages.
    fn tell_of_few(&mut self, plans: &[Plan]) {
        let num_stages = self.policy().stage().pipeline.num_stages;
        let least = plans.iter().map(|plan| plan.batches.len()).min().unwrap_or(num_stages);
        if least < num_stages && !self.has_told_of_few && self.comm.rank() == 0 {
            self.has_told_of_few = true;
            tracing::warn!(
                "a step has {least} micro-batches for {num_stages} pipeline stages, which wait most of the time: lower \
                 train.max_tokens_per_gpu or parallel.pp (said once)"
            );
        }
    }

    /// What each group says about its samples; groups are (step, group) over the whole rollout, whatever their size.
    fn relative(&self, scored: &[&Scored]) -> Result<Vec<Relative>> {
        let mut groups: BTreeMap<(u64, u32), Vec<usize>> = BTreeMap::new();
        for (i, scored) in scored.iter().enumerate() {
            groups.entry((scored.sample.step, scored.sample.group)).or_default().push(i);
        }
        let mut relative = vec![Relative::default(); scored.len()];
        for members in groups.values() {
            let members_of: Vec<&Scored> = members.iter().map(|i| scored[*i]).collect();
            for (i, of_sample) in members.iter().zip(self.relative_in_group(&members_of)?) {
                relative[*i] = of_sample;
            }
        }
        Ok(relative)
    }

    fn relative_in_group(&self, group: &[&Scored]) -> Result<Vec<Relative>> {
        let algorithm = &self.settings.algorithm;
        if algorithm.has_pairs() {
            let first = group[0];
            if group.len() != 2 {
                return Err(first.wrong(
                    "group",
                    "2 samples: the better answer, then the worse",
                    group.len(),
                ));
            }
            let is_empty = |scored: &&&Scored| algorithm.loss == LossType::Dpo && scored.num_trained() == 0;
            if let Some(empty) = group.iter().find(is_empty) {
                return Err(empty.wrong("loss_mask", "a trained token in both answers of a pair", "none"));
            }
            return Ok(vec![Relative::default(); 2]);
        }
        if algorithm.loss == LossType::Sft {
            return Ok(vec![Relative::default(); group.len()]);
        }
        let estimator = algorithm.advantage_estimator;
        if estimator.compares_group() && group.len() < 2 {
            let expected = format!("at least 2 samples for {}", estimator.name());
            return Err(group[0].wrong("group", expected, group.len()));
        }
        let reward = |scored: &&Scored| match (scored.reward, estimator) {
            (Some(reward), _) => Ok(reward),
            (None, AdvantageEstimator::Distillation) => Ok(0.0),
            (None, _) => Err(scored.wrong("reward", "a number", "none")),
        };
        let rewards = group.iter().map(reward).collect::<Result<Vec<f32>>>()?;
        let std = algorithm.grpo_std_normalization && estimator.divides_by_std();
        let outcomes = match estimator {
            AdvantageEstimator::Rloo => advantage::rloo(&rewards),
            _ if estimator.compares_group() => advantage::grpo(&rewards, std),
            _ => rewards,
        };
        let process = self.process_in_group(group, std)?;
        let pair = |(outcome, process)| Relative { outcome, process };
        Ok(outcomes.into_iter().zip(process).map(pair).collect())
    }

    /// The rewards of single tokens at the trained ones, normalised in the group where the estimator does that.
    fn process_in_group(&self, group: &[&Scored], std: bool) -> Result<Vec<Vec<f32>>> {
        let estimator = self.settings.algorithm.advantage_estimator;
        if group.iter().all(|scored| scored.token_rewards.is_empty()) {
            return Ok(vec![Vec::new(); group.len()]);
        }
        if !estimator.reads_token_rewards() {
            let with = group.iter().find(|scored| !scored.token_rewards.is_empty()).unwrap_or(&group[0]);
            let expected = format!("none with {}", estimator.name());
            return Err(with.wrong("token_rewards", expected, with.token_rewards.len()));
        }
        let trained = |scored: &&Scored| -> Result<Vec<f32>> {
            let mut rewards = Vec::with_capacity(scored.num_trained());
            for (token, mask) in scored.sample.loss_mask.iter().enumerate() {
                let reward = scored.token_rewards.get(token).copied().unwrap_or(0.0);
                if *mask != 0 {
                    rewards.push(reward);
                } else if reward != 0.0 {
                    let expected = "0 at tokens that are not trained";
                    return Err(scored.wrong("token_rewards", expected, reward));
                }
            }
            Ok(rewards)
        };
        let rewards = group.iter().map(trained).collect::<Result<Vec<_>>>()?;
        Ok(if estimator.compares_group() { advantage::grpo_process(&rewards, std) } else { rewards })
    }

    fn plan_step(
        &self,
        step: usize,
        scored: &[&Scored],
        relative: &[Relative],
        logged_groups: &BTreeSet<(u64, u32)>,
    ) -> Result<Plan> {
        let algorithm = &self.settings.algorithm;
        let samples: Vec<&Sample> = scored.iter().map(|scored| &scored.sample).collect();
        let cost = |batch: &MicroBatch| forward_flops(self.policy().config(), batch);
        let mut ranks = pack(&samples, self.packing(), self.dp.size(), cost)?;
        let weighted: Vec<Weighted> = scored
            .iter()
            .map(|scored| {
                let sample = &scored.sample;
                let episode = (sample.step, sample.group, sample.episode);
                Weighted { num_trained: scored.num_trained(), weight: sample.weight, episode }
            })
            .collect();
        let coefficients = Coefficients {
            loss: coefficients(&weighted, algorithm.loss_reducer(), self.settings.loss_len),
            mean: coefficients(&weighted, LossReducer::SampleMean, 1.0),
        };
        let counts = counts(scored, relative, &ranks);
        if counts.num_trained_tokens == 0 {
            return Err(Error::NothingTrained { step });
        }
        let logged: BTreeMap<usize, _> = samples
            .iter()
            .enumerate()
            .filter(|(_, sample)| logged_groups.contains(&(sample.step, sample.group)))
            .map(|(i, sample)| {
                let log_probs = vec![f32::NAN; sample.response_len()];
                (i, (sample.id(), LoggedSample { tokens_hash: sample.tokens_hash(), log_probs }))
            })
            .collect();
        let batches = ranks
            .swap_remove(self.dp.rank())
            .into_iter()
            .map(|batch| {
                let is_logged =
                    self.speaks() && batch.places.iter().any(|place| logged.contains_key(&place.sample));
                self.prepare(batch, scored, &coefficients, is_logged)
            })
            .collect::<Result<_>>()?;
        let scored = scored.iter().map(|scored| (*scored).clone()).collect();
        Ok(Plan { batches, scored, relative: relative.to_vec(), counts, logged })
    }

    fn packing(&self) -> Packing {
        let algorithm = &self.settings.algorithm;
        Packing {
            max_tokens: self.settings.train.max_tokens_per_gpu as usize * self.num_token_shares(),
            rows: if algorithm.loss == LossType::RewardModel { Rows::Last } else { Rows::Trained },
            keeps_groups: algorithm.has_pairs(),
        }
    }

    /// Ranks that have the tokens of a micro-batch between them.
    fn num_token_shares(&self) -> usize {
        self.policy().params().parallel().and_then(Parallel::cp).map_or(1, |cp| cp.group.size())
    }

    /// Says once that a sample does not fit into the budget.
    fn tell_of_longer(&mut self, scored: &[&Scored]) {
        if self.has_told_of_longer || self.comm.rank() > 0 {
            return;
        }
        let samples: Vec<&Sample> = scored.iter().map(|scored| &scored.sample).collect();
        let packing = self.packing();
        if let Some((id, num)) = first_longer(&samples, packing) {
            self.has_told_of_longer = true;
            let ranks = match self.num_token_shares() {
                1 => String::new(),
                num => format!(" on {num} ranks"),
            };
            tracing::warn!(
                "sample {id} takes {num} tokens, more than train.max_tokens_per_gpu {}{ranks}: such samples are micro-batches \
                 by themselves (said once)",
                self.settings.train.max_tokens_per_gpu
            );
        }
    }
}

/// The first `num` groups (step, group) of sorted samples.
fn first_groups(sorted: &[&Scored], num: usize) -> BTreeSet<(u64, u32)> {
    let mut groups: Vec<_> = sorted.iter().map(|scored| (scored.sample.step, scored.sample.group)).collect();
    groups.dedup();
    groups.into_iter().take(num).collect()
}

fn counts(scored: &[&Scored], relative: &[Relative], ranks: &[Vec<MicroBatch>]) -> StepMetrics {
    let all = || ranks.iter().flatten();
    let num = scored.len() as f64;
    let mean = |of: &dyn Fn(&Scored) -> f64| scored.iter().map(|s| of(s)).sum::<f64>() / num;
    let rewards: Vec<f64> = scored.iter().filter_map(|s| s.reward.map(f64::from)).collect();
    let reward_mean = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64);
    let variance = reward_mean
        .map(|mean| rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / rewards.len() as f64);
    StepMetrics {
        reward_mean,
        reward_std: variance.map(f64::sqrt),
        normalized_reward_mean: relative.iter().map(|of| f64::from(of.outcome)).sum::<f64>() / num,
        response_len_mean: mean(&|s| s.sample.response_len() as f64),
        total_len_mean: mean(&|s| s.sample.tokens.len() as f64),
        truncated_ratio: mean(&|s| f64::from(u8::from(s.sample.status == Status::Truncated))),
        num_samples: scored.len(),
        num_masked_samples: scored.iter().filter(|s| s.num_trained() == 0).count(),
        num_trained_tokens: all().map(|batch| batch.rows.len()).sum(),
        num_forward_tokens: all().map(|batch| batch.tokens.len()).sum(),
        num_unshared_tokens: scored.iter().map(|s| s.sample.tokens.len()).sum(),
        ..StepMetrics::default()
    }
}
