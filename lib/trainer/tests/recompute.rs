//! Activations that are computed again in backward give the bits of those that are kept, on every layout, in less memory.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{AdvantageEstimator, Recompute, RoutingReplay};
use slime_model::{Extra, Model, Parallel};
use slime_trainer::{Roles, Scored, Settings, StepMetrics, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{rollout, settings};

/// Metrics, the gradients of every step, the weights afterwards.
struct Run {
    steps: Vec<StepMetrics>,
    grads: Vec<(String, Tensor)>,
    weights: Vec<(String, Tensor)>,
}

fn load((name, extra, kind): (&str, Extra, Kind), comm: &Arc<dyn Communicator>, layout: Layout) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    let mesh = Mesh::new(layout, comm.size()).unwrap();
    let parallel = (comm.size() > 1).then(|| Arc::new(Parallel::new(comm, mesh, Device::Cpu).unwrap()));
    Model::load_part(dir, (kind, Device::Cpu), extra, parallel).unwrap()
}

fn train(roles: Roles, comm: Arc<dyn Communicator>, settings: &Settings, scored: &[Scored]) -> Run {
    let mut trainer = Trainer::new(roles, comm, settings.clone()).unwrap();
    let mut grads = Vec::new();
    let steps = trainer.train_rollout_with(scored, |_, of_step| {
        grads.extend(of_step.whole()?);
        Ok(())
    });
    let critic = trainer.critic().into_iter().flat_map(|critic| critic.params().iter());
    let weights = trainer.policy().params().iter().chain(critic);
    let weights = weights.map(|(spec, tensor)| (spec.name.clone(), tensor.detach().copy())).collect();
    Run { steps: steps.unwrap(), grads, weights }
}

fn with(settings: &Settings, recompute: Recompute) -> Settings {
    let mut settings = settings.clone();
    settings.train.recompute = recompute;
    settings
}

fn several_steps() -> Settings {
    let mut settings = settings();
    settings.num_steps_per_rollout = 2;
    settings.algorithm.entropy_coef = 0.01;
    settings.train.max_tokens_per_gpu = 40;
    settings
}

fn assert_same(got: &Run, expected: &Run, what: &str) {
    assert_eq!(got.steps, expected.steps, "{what}");
    for (got, expected) in [(&got.grads, &expected.grads), (&got.weights, &expected.weights)] {
        assert_eq!(got.len(), expected.len());
        for ((name, got), (_, expected)) in got.iter().zip(expected) {
            assert!(got.equal(expected), "{what}: {name} differs");
        }
    }
}

/// All three ways on one layout.
fn compare(model: (&str, Extra, Kind), layout: Layout, settings: &Settings, scored: &[Scored]) {
    tch::set_num_threads(1);
    let run = |recompute| {
        let settings = with(settings, recompute);
        let rank = |comm: Arc<dyn Communicator>| {
            let policy = load(model, &comm, layout);
            train(policy.into(), comm, &settings, scored)
        };
        match layout.tp * layout.pp * layout.dp {
            1 => vec![rank(Arc::new(Single))],
            size => Threads::spawn(size, |comm| rank(Arc::new(comm))).unwrap(),
        }
    };
    let kept = run(Recompute::None);
    for recompute in [Recompute::Selective, Recompute::Full] {
        for (rank, (got, expected)) in run(recompute).iter().zip(&kept).enumerate() {
            let (name, _, kind) = model;
            assert_same(got, expected, &format!("{name} {kind:?} {layout:?}, {recompute:?}, rank {rank}"));
        }
    }
}

#[test]
fn gradients_of_every_family_have_the_same_bits() {
    let names = ["llama", "llama_tied", "qwen2", "qwen3", "glm4", "qwen3_moe", "glm4_moe", "minimax_m2"];
    for name in names {
        compare((name, Extra::None, Kind::Float), Layout::default(), &several_steps(), &rollout(4, 3));
    }
    let mut settings = several_steps();
    settings.train.mtp_loss_coef = Some(0.3);
    compare(("mimo", Extra::Mtp, Kind::Float), Layout::default(), &settings, &rollout(4, 3));
    compare(("qwen3", Extra::None, Kind::BFloat16), Layout::default(), &several_steps(), &rollout(4, 3));
}

#[test]
fn split_models_make_the_same_calls_and_have_the_same_bits() {
    for (name, [tp, pp, dp, ep, etp]) in [
        ("llama_tied", [2, 1, 1, 1, 1]),
        ("llama_tied", [1, 2, 1, 1, 1]),
        ("qwen3", [2, 1, 2, 1, 1]),
        ("minimax_m2", [2, 1, 1, 2, 1]),
        ("qwen3_moe", [2, 1, 2, 2, 2]),
        ("glm4_moe", [1, 1, 4, 4, 1]),
        ("glm4_moe", [2, 3, 1, 2, 1]),
    ] {
        let layout = Layout { tp, pp, dp, ep, etp, ..Layout::default() };
        compare((name, Extra::None, Kind::Float), layout, &several_steps(), &rollout(4, 3));
    }
    // More ranks than samples: one computes a token that nothing is learned from.
    let layout = Layout { dp: 4, ep: 4, ..Layout::default() };
    compare(("glm4_moe", Extra::None, Kind::Float), layout, &settings(), &rollout(1, 3));
}

#[test]
fn replayed_routes_and_frozen_parameters_stay_what_they_are() {
    let mut replayed = several_steps();
    replayed.algorithm.routing_replay = RoutingReplay::Recomputed;
    compare(("qwen3_moe", Extra::None, Kind::Float), Layout::default(), &replayed, &rollout(4, 3));
    for patterns in [
        vec!["model.embed_tokens.weight"],
        vec!["model.embed_tokens.weight", "model.layers.0.*"],
        vec!["model.embed_tokens.weight", "model.layers.*"],
    ] {
        let mut frozen = several_steps();
        frozen.train.freeze = patterns.into_iter().map(str::to_owned).collect();
        compare(("qwen3", Extra::None, Kind::Float), Layout::default(), &frozen, &rollout(4, 3));
    }
}

#[test]
fn the_critic_is_computed_again_too() {
    tch::set_num_threads(1);
    let mut settings = several_steps();
    settings.algorithm.advantage_estimator = AdvantageEstimator::Ppo;
    let run = |recompute| {
        let comm: Arc<dyn Communicator> = Arc::new(Single);
        let of = |extra| load(("llama", extra, Kind::Float), &comm, Layout::default());
        let roles = Roles { critic: Some(of(Extra::ValueHead { seed: 3 })), ..Roles::from(of(Extra::None)) };
        train(roles, comm.clone(), &with(&settings, recompute), &rollout(4, 3))
    };
    let kept = run(Recompute::None);
    for recompute in [Recompute::Selective, Recompute::Full] {
        assert_same(&run(recompute), &kept, &format!("{recompute:?}"));
    }
}
