//! Tiny models, synthetic rollouts, and how each formula is configured in a trainer.

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::Communicator;
use slime_config::{
    AdvantageEstimator, Correction, CorrectionWeight, KlLossType, LossReducer, LossType, OnFailure,
    PolicyLoss, RatioLevel, Train,
};
use slime_model::{Extra, Model, Parallel};
use slime_record::Sample;
use slime_trainer::log_probs::log_probs;
use slime_trainer::packing::{Packing, pack};
use slime_trainer::{MicroBatch, Roles, Scored, Settings, Trainer};
use tch::{Device, Kind};

pub const TEMPERATURE: f64 = 0.7;

fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
}

pub fn model(name: &str) -> Model {
    Model::load(dir(name), Kind::Float, Device::Cpu).unwrap()
}

fn part(name: &str, extra: Extra, parallel: Option<&Arc<Parallel>>) -> Model {
    Model::load_part(dir(name), (Kind::Float, Device::Cpu), extra, parallel.cloned()).unwrap()
}

/// A linear congruential generator.
pub struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 31) as f64
    }
}

/// A ragged rollout of pairs or groups: prompts of 3 to 5 tokens, responses of 1 to 9, some tokens masked; log-probs of
/// generation are the model's own with noise.
pub fn rollout(num_groups: u32, num_samples: u32) -> Vec<Scored> {
    let mut scored = Vec::new();
    for group in 0..num_groups {
        let mut draws = Draws(u64::from(group) * 31 + 7);
        let prompt: Vec<u32> = (0..3 + group % 3).map(|_| (draws.next() % 96) as u32).collect();
        for index in 0..num_samples {
            let mut draws = Draws(u64::from(group * 101 + index * 13 + 5));
            let response: Vec<u32> =
                (0..=(group + 3 * index) % 9).map(|_| (draws.next() % 96) as u32).collect();
            let loss_mask = (0..response.len()).map(|at| u8::from(index != 1 || at % 3 != 1)).collect();
            let sample = Sample {
                group,
                index,
                episode: u64::from(index / 2),
                tokens: [prompt.clone(), response].concat(),
                prompt_len: prompt.len() as u32,
                loss_mask,
                weight: if index == 2 { 0.5 } else { 1.0 },
                ..Sample::default()
            };
            scored.push(Scored::new(sample, (index % 2) as f32 + 0.1 * group as f32 + 0.05 * index as f32));
        }
    }
    record_log_probs(&mut scored, 0.4);
    scored
}

pub fn packed(samples: &[&Sample], max_tokens: usize) -> Vec<MicroBatch> {
    pack(samples, Packing { max_tokens, ..Packing::default() }, 1, |_| 0.0).unwrap().remove(0)
}

/// Records the log-probs that the model gives, off by up to `noise`, and a teacher's.
pub fn record_log_probs(scored: &mut [Scored], noise: f64) {
    let mut draws = Draws(99);
    let samples: Vec<Sample> = scored.iter().map(|scored| scored.sample.clone()).collect();
    let samples: Vec<&Sample> = samples.iter().collect();
    for scored in scored.iter_mut() {
        scored.sample.rollout_log_probs = vec![-1.0; scored.sample.response_len()];
        scored.teacher_log_probs = vec![-1.0; scored.sample.response_len()];
    }
    let policy = model("llama");
    for batch in packed(&samples, 4096) {
        let (log_probs_r, _) = tch::no_grad(|| log_probs(&policy, &batch, TEMPERATURE)).unwrap();
        let values = Vec::<f32>::try_from(log_probs_r).unwrap();
        for (place, value) in batch.places.iter().zip(values) {
            let off = |draws: &mut Draws| (noise * (2.0 * draws.unit() - 1.0)) as f32;
            scored[place.sample].sample.rollout_log_probs[place.token] = value + off(&mut draws);
            scored[place.sample].teacher_log_probs[place.token] = value + off(&mut draws);
        }
    }
}

/// The configuration that reads a formula, on top of GRPO with two optimizer steps.
pub fn settings(name: &str) -> Settings {
    let mut settings = Settings {
        train: Train { lr: 2e-3, max_tokens_per_gpu: 64, ..Train::default() },
        temperature: TEMPERATURE,
        num_steps_per_rollout: 2,
        num_optimizer_steps: 100,
        loss_len: 16.0,
        ..Settings::default()
    };
    settings.checks.on_failure = OnFailure::Fail;
    let algorithm = &mut settings.algorithm;
    let mut correct = |correction: Correction| algorithm.correction = correction;
    let weight = |weight| Correction { weight, high: Some(1.2), low: Some(0.85), ..Correction::default() };
    let reject = |level| Correction {
        reject: Some(level),
        reject_low: Some(0.7),
        reject_high: Some(1.3),
        ..Correction::default()
    };
    match name {
        "truncated_importance" => {
            correct(Correction { normalize: true, ..weight(CorrectionWeight::Truncate) });
        }
        "clipped_importance" => correct(Correction {
            level: RatioLevel::Sequence,
            normalize: true,
            ..weight(CorrectionWeight::Clip)
        }),
        "icepop" => correct(weight(CorrectionWeight::Mask)),
        "decoupled_ppo" => {
            correct(Correction { weight: CorrectionWeight::Truncate, ..Correction::default() });
        }
        "token_rejection" => correct(reject(RatioLevel::Token)),
        "sequence_rejection" => correct(reject(RatioLevel::Sequence)),
        "veto" => correct(Correction { veto: Some(0.72), ..Correction::default() }),
        "off_policy_sequence_masking" => {
            correct(Correction { opsm_delta: Some(1e-4), ..Correction::default() });
        }
        _ => {}
    }
    let estimator = match name {
        "dr_grpo" => AdvantageEstimator::DrGrpo,
        "gspo" => AdvantageEstimator::Gspo,
        "cispo" => AdvantageEstimator::Cispo,
        "rloo" => AdvantageEstimator::Rloo,
        "reinforce_plus_plus" => AdvantageEstimator::ReinforcePlusPlus,
        "reinforce_plus_plus_baseline" => AdvantageEstimator::ReinforcePlusPlusBaseline,
        "ppo" | "value_loss" => AdvantageEstimator::Ppo,
        "distillation" => AdvantageEstimator::Distillation,
        _ => AdvantageEstimator::Grpo,
    };
    algorithm.advantage_estimator = estimator;
    if estimator.reads_token_kl() {
        (algorithm.kl_coef, algorithm.gamma, algorithm.lambda) = (Some(0.05), 0.98, 0.95);
    }
    if estimator == AdvantageEstimator::Distillation {
        settings.opd_kl_coef = Some(1.0);
    }
    let kl = match name {
        "k1" => Some(KlLossType::K1),
        "k2" => Some(KlLossType::K2),
        "k3" | "unbiased_kl" => Some(KlLossType::K3),
        "low_var_kl" => Some(KlLossType::LowVarKl),
        "full_kl" => Some(KlLossType::Full),
        _ => None,
    };
    if let Some(kl) = kl {
        (algorithm.kl_loss_coef, algorithm.kl_loss_type) = (Some(0.3), kl);
        algorithm.unbiased_kl = name == "unbiased_kl";
    }
    match name {
        "whitening" => algorithm.normalize_advantages = true,
        "gspo_loss" => algorithm.policy_loss = Some(PolicyLoss::Gspo),
        "cispo_loss" => algorithm.policy_loss = Some(PolicyLoss::Cispo),
        "ppo_clip" => algorithm.eps_clip_c = Some(3.0),
        "entropy" => algorithm.entropy_coef = 0.05,
        "sft" => algorithm.loss = LossType::Sft,
        "dpo" => (algorithm.loss, algorithm.dpo_label_smoothing) = (LossType::Dpo, 0.05),
        "reward_model" => algorithm.loss = LossType::RewardModel,
        "token_mean" => algorithm.loss_reducer = Some(LossReducer::TokenMean),
        "constant_length" => algorithm.loss_reducer = Some(LossReducer::ConstantLength),
        "episode_mean" => algorithm.loss_reducer = Some(LossReducer::EpisodeMean),
        _ => {}
    }
    settings
}

/// Whether the samples of a formula are pairs.
pub fn has_pairs(name: &str) -> bool {
    matches!(name, "dpo" | "reward_model")
}

/// A trainer over fresh models; the reference is another model where a KL is measured, so that it is not 0.
pub fn trainer(settings: Settings, comm: Arc<dyn Communicator>) -> Trainer {
    split_trainer(settings, comm, None)
}

/// The same with models that are split over ranks.
pub fn split_trainer(
    settings: Settings,
    comm: Arc<dyn Communicator>,
    parallel: Option<&Arc<Parallel>>,
) -> Trainer {
    let algorithm = &settings.algorithm;
    let scoring = |seed| part("llama", Extra::ValueHead { seed }, parallel);
    let roles = Roles {
        policy: match algorithm.loss {
            LossType::RewardModel => scoring(1),
            _ => part("llama", Extra::None, parallel),
        },
        reference: algorithm.has_reference().then(|| part("llama_tied", Extra::None, parallel)),
        teacher: None,
        critic: algorithm.has_critic().then(|| scoring(2)),
    };
    Trainer::new(roles, comm, settings).unwrap()
}
