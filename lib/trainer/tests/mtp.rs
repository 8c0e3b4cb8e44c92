//! The layer for further tokens is trained beside the policy and moves nothing else.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Single, Threads};
use slime_config::{LossType, Train};
use slime_model::Model;
use slime_trainer::{Scored, Settings, StepMetrics, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{rollout, settings};

fn policy() -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/mimo");
    Model::load_with_mtp(dir, Kind::Float, Device::Cpu).unwrap()
}

fn with(coef: Option<f64>, max_tokens_per_gpu: u32) -> Settings {
    let train = Train { mtp_loss_coef: coef, max_tokens_per_gpu, ..settings().train };
    Settings { train, ..settings() }
}

/// The metrics and the reduced gradients of one step.
fn step(
    comm: Arc<dyn Communicator>,
    settings: Settings,
    scored: &[Scored],
) -> (StepMetrics, Vec<(String, Tensor)>) {
    let mut trainer = Trainer::new(policy(), comm, settings).unwrap();
    let mut seen = Vec::new();
    let steps = trainer
        .train_rollout_with(scored, |_, grads| {
            seen = grads.whole()?;
            Ok(())
        })
        .unwrap();
    (steps[0].clone(), seen)
}

fn most(grad: &Tensor) -> f64 {
    grad.abs().max().double_value(&[])
}

#[test]
fn its_loss_moves_its_own_weights_and_no_others() {
    let scored = rollout(3, 4);
    let (off, plain) = step(Arc::new(Single), with(None, 64), &scored);
    let (on, both) = step(Arc::new(Single), with(Some(0.2), 64), &scored);
    assert_eq!(off.loss.to_bits(), on.loss.to_bits(), "the loss is told by itself");
    assert!(!off.extra.contains_key("train/mtp_loss") && on.extra["train/mtp_loss"] > 1.0);
    for ((name, plain), (_, both)) in plain.iter().zip(&both) {
        if name.starts_with("mtp.") {
            assert!(most(plain) <= 0.0 && most(both) > 0.0, "{name}");
        } else {
            assert!(plain.equal(both), "{name}");
        }
    }
}

#[test]
fn loss_and_gradients_do_not_depend_on_packing_ranks_or_shared_prompts() {
    let scored = rollout(3, 4);
    let (one, grads) = step(Arc::new(Single), with(Some(0.5), 1000), &scored);
    // Single samples: no prompt is shared.
    let (alone, alone_grads) = step(Arc::new(Single), with(Some(0.5), 1), &scored);
    let ranks = Threads::spawn(2, |comm| step(Arc::new(comm), with(Some(0.5), 64), &scored)).unwrap();
    let others = ranks.into_iter().chain([(alone, alone_grads)]);
    for (metrics, other) in others {
        let (a, b) = (metrics.extra["train/mtp_loss"], one.extra["train/mtp_loss"]);
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
        for ((name, a), (_, b)) in other.iter().zip(&grads).filter(|((name, _), _)| name.starts_with("mtp."))
        {
            assert!(most(&(a - b)) < 1e-5 + 1e-4 * most(b), "{name}");
        }
    }
}

#[test]
fn it_learns_beside_supervised_training() {
    let scored = rollout(2, 3);
    let mut settings = with(Some(1.0), 64);
    settings.algorithm.loss = LossType::Sft;
    settings.train.lr = 2e-2;
    let mut trainer = Trainer::new(policy(), Arc::new(Single), settings).unwrap();
    let mut losses = Vec::new();
    for _ in 0..40 {
        losses.push(trainer.train_rollout(&scored).unwrap()[0].extra["train/mtp_loss"]);
    }
    assert!(losses[39] < 0.6 * losses[0], "{losses:?}");
    assert!(trainer.buffers().iter().any(|buffer| buffer.name == "exp_avg/mtp.input_proj"));
}

#[test]
fn policy_without_such_a_layer_is_refused() {
    let model = tiny::model("qwen2", Kind::Float);
    let error = Trainer::new(model, Arc::new(Single), with(Some(0.2), 64)).err().unwrap();
    assert!(error.to_string().contains("a policy with a layer for further tokens"), "{error}");
}
