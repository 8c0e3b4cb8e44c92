//! Training repeats the experts that generation or the pass before the first update chose.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::sync::Arc;

use slime_comm::Single;
use slime_config::{OnFailure, RoutingReplay};
use slime_model::{Model, Routes, Shaping};
use slime_record::Sample;
use slime_trainer::log_probs::{hidden_states, recorded_hidden_states};
use slime_trainer::{MicroBatch, Scored, Settings, StepMetrics, Trainer};
use tch::{Kind, Tensor};
use tiny::{model, packed, rollout, settings};

const MODELS: [&str; 3] = ["qwen3_moe", "glm4_moe", "minimax_m2"];

/// Experts of a token over all layers.
fn width(model: &Model) -> usize {
    model.config().moe.as_ref().map_or(0, |moe| moe.layers.len() * moe.top_k)
}

/// The ids of one pass over a batch.
fn chosen(model: &Model, batch: &MicroBatch) -> Vec<u16> {
    tch::no_grad(|| recorded_hidden_states(model, batch)).unwrap().1.unwrap().ids().unwrap()
}

/// A rollout that `generator` sampled at temperature 0.7: its log-probs and its choice of experts.
fn generated(generator: &Model) -> Vec<Scored> {
    let mut scored = rollout(8, 5);
    for scored in &mut scored {
        scored.sample.loss_mask.fill(1);
        let sample = &mut scored.sample;
        let batch = packed(std::slice::from_ref(sample), 1000).remove(0);
        let log_probs = slime_trainer::log_probs::log_probs(generator, &batch, 0.7).unwrap().0;
        sample.rollout_log_probs = Vec::try_from(log_probs.detach().to_kind(Kind::Float)).unwrap();
        sample.routed_experts = chosen(generator, &batch);
        sample.validate().unwrap();
    }
    scored
}

/// The model with routers that are a little off, as another precision would make them.
fn perturbed(name: &str) -> Model {
    let mut model = model(name, Kind::Float);
    tch::no_grad(|| {
        for (_, router) in model.params_mut().iter().filter(|(spec, _)| spec.name.ends_with(".router")) {
            let noise = Tensor::arange(router.numel() as i64, (Kind::Float, router.device())).sin() * 0.05;
            let _ = router.shallow_clone().g_add_(&noise.view(router.size().as_slice()));
        }
    });
    model
}

fn trainer(model: Model, settings: Settings) -> Trainer {
    Trainer::new(model, Arc::new(Single), settings).unwrap()
}

fn with(replay: RoutingReplay) -> Settings {
    let mut settings = settings();
    settings.algorithm.routing_replay = replay;
    settings
}

fn trained(name: &str, replay: RoutingReplay, scored: &[Scored]) -> StepMetrics {
    trainer(perturbed(name), with(replay)).train_rollout(scored).unwrap().remove(0)
}

#[test]
fn experts_of_generation_bring_its_log_probs_and_those_of_training_together() {
    for name in MODELS {
        let scored = generated(&model(name, Kind::Float));
        let same = trainer(model(name, Kind::Float), with(RoutingReplay::Rollout)).train_rollout(&scored);
        assert!(same.unwrap()[0].log_prob_abs_diff < 1e-5, "{name}: the same weights");
        let replayed = trained(name, RoutingReplay::Rollout, &scored).log_prob_abs_diff;
        let free = trained(name, RoutingReplay::None, &scored).log_prob_abs_diff;
        assert!(replayed < 0.95 * free, "{name}: {replayed} replayed, {free} free");
    }
}

/// The routes of one fed micro-batch, as its samples have them.
fn routes_of(policy: &Model, batch: &MicroBatch, samples: &[Sample]) -> Routes {
    let (moe, width) = (policy.config().moe.as_ref().unwrap(), width(policy));
    let mut ids = Vec::new();
    for (segment, source) in batch.segments.iter().zip(&batch.sources) {
        let all = &samples[source.sample].routed_experts;
        ids.extend_from_slice(&all[source.token * width..(source.token + segment.len) * width]);
    }
    Routes::new(&ids, [batch.tokens.len(), moe.layers.len(), moe.top_k]).unwrap()
}

#[test]
fn training_goes_exactly_where_samples_say_and_shared_prompts_where_the_first_says() {
    for name in MODELS {
        let policy = model(name, Kind::Float);
        let mut scored = generated(&policy);
        let num_experts = policy.config().moe.as_ref().unwrap().num_experts as u16;
        for scored in &mut scored {
            // Experts that no router would choose, so that any other choice shows.
            let sample = &mut scored.sample;
            sample.routed_experts.iter_mut().for_each(|id| *id = (*id + 1) % num_experts);
            let batch = packed(std::slice::from_ref(sample), 1000).remove(0);
            let routes = routes_of(&policy, &batch, std::slice::from_ref(sample));
            let hidden = hidden_states(&policy, &batch, Some(&routes)).unwrap();
            let targets = Tensor::from_slice(&batch.targets);
            let log_probs = policy.head_log_probs(&hidden, &targets, &Shaping::at(0.7)).unwrap().0;
            sample.rollout_log_probs = Vec::try_from(log_probs.detach().to_kind(Kind::Float)).unwrap();
        }
        let diff = |replay| {
            let mut settings = with(replay);
            // Old log-probs come from a pass of their own, which has to go there too.
            settings.num_steps_per_rollout = 2;
            let steps = trainer(model(name, Kind::Float), settings).train_rollout(&scored).unwrap();
            steps[0].log_prob_abs_diff
        };
        let (replayed, free) = (diff(RoutingReplay::Rollout), diff(RoutingReplay::None));
        assert!(replayed < 1e-5 && free > 1e-2, "{name}: {replayed} replayed, {free} free");
    }
}

#[test]
fn log_probs_before_the_first_update_are_those_of_the_update_bit_by_bit() {
    for name in MODELS {
        let scored = generated(&model(name, Kind::Float));
        for replay in [RoutingReplay::None, RoutingReplay::Recomputed, RoutingReplay::Rollout] {
            let mut settings = with(replay);
            settings.num_steps_per_rollout = 2;
            settings.checks.on_failure = OnFailure::Fail;
            trainer(model(name, Kind::Float), settings).train_rollout(&scored).unwrap();
        }
    }
}

#[test]
fn later_steps_repeat_the_experts_of_the_pass_before_the_first() {
    for name in MODELS {
        let scored = generated(&model(name, Kind::Float));
        let steps = |replay| {
            let mut settings = with(replay);
            settings.num_steps_per_rollout = 2;
            settings.train.lr = 0.02;
            trainer(model(name, Kind::Float), settings).train_rollout(&scored).unwrap()
        };
        let (free, replayed) = (steps(RoutingReplay::None), steps(RoutingReplay::Recomputed));
        assert_eq!(free[0].loss.to_bits(), replayed[0].loss.to_bits(), "{name}: nothing moved before");
        assert_ne!(free[1].loss.to_bits(), replayed[1].loss.to_bits(), "{name}: an update moves routers");
    }
}

#[test]
fn samples_without_fitting_experts_are_refused_by_name() {
    let error = |change: &dyn Fn(&mut Sample)| {
        let mut scored = generated(&model("glm4_moe", Kind::Float));
        change(&mut scored[5].sample);
        let mut trainer = trainer(model("glm4_moe", Kind::Float), with(RoutingReplay::Rollout));
        let error = trainer.train_rollout(&scored).unwrap_err();
        assert_eq!(error.exit_code(), 65);
        error.to_string()
    };
    let rows = {
        let scored = generated(&model("glm4_moe", Kind::Float));
        scored[5].sample.tokens.len() - 1
    };
    assert_eq!(
        error(&|sample| sample.routed_experts.clear()),
        format!(
            "sample 0/1/0.0.0: routed_experts: expected {rows} tokens x 2 layers x 3 experts, as \
             algorithm.routing_replay is \"rollout\", got 0"
        )
    );
    assert!(error(&|sample| sample.routed_experts.truncate(rows * 3)).contains("2 layers x 3 experts"));
    let message = error(&|sample| sample.routed_experts[4] = 8);
    assert!(message.ends_with("routed_experts: expected experts below 8, got 8"), "{message}");
    // Tokens that were not computed while recording choose freely.
    let mut scored = generated(&model("glm4_moe", Kind::Float));
    scored[5].sample.routed_experts[..12].fill(Routes::NOT_RECORDED);
    let mut trainer = trainer(model("glm4_moe", Kind::Float), with(RoutingReplay::Rollout));
    assert!(trainer.train_rollout(&scored).unwrap()[0].log_prob_abs_diff < 1e-5);
}

#[test]
fn correction_bias_is_neither_trained_nor_part_of_the_state() {
    let scored = generated(&model("glm4_moe", Kind::Float));
    let mut trainer = trainer(model("glm4_moe", Kind::Float), settings());
    let bias = |trainer: &Trainer| trainer.policy().params().get("layers.1.router_bias").unwrap().copy();
    let router =
        |trainer: &Trainer| trainer.policy().params().get("layers.1.router").unwrap().detach().copy();
    let (bias_before, router_before) = (bias(&trainer), router(&trainer));
    trainer.train_rollout(&scored).unwrap();
    assert!(bias(&trainer).equal(&bias_before) && !router(&trainer).equal(&router_before));
    assert!(trainer.buffers().iter().all(|buffer| !buffer.name.contains("router_bias")));
    assert!(trainer.buffers().iter().any(|buffer| buffer.name == "master/layers.1.router"));
}
