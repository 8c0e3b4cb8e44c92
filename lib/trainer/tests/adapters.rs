//! Adapters: what they learn, what they leave as it is, and the reference that a policy with them brings along.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Single, Threads};
use slime_config::{KlLossType, Lora, OnFailure, Recompute};
use slime_model::{Extra, Model};
use slime_trainer::{Roles, Settings, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{model, rollout, settings};

fn lora() -> Lora {
    Lora { rank: 4, alpha: 8.0, targets: Vec::new() }
}

fn adapted(name: &str, kind: Kind, lora: &Lora) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    Model::load_part(dir, (kind, Device::Cpu), Extra::Adapters { lora, seed: 5 }, None).unwrap()
}

fn trainer(model: impl Into<Roles>, settings: &Settings) -> Trainer {
    Trainer::new(model, Arc::new(Single), settings.clone()).unwrap()
}

/// The whole tensors under their Hugging Face names.
fn whole(trainer: &Trainer) -> BTreeMap<String, Tensor> {
    let tensors = trainer.policy().params().whole_tensors().map(Result::unwrap);
    tensors.map(|(name, tensor)| (name, tensor.unwrap().copy())).collect()
}

/// The gradients of the first optimizer step, by Hugging Face name.
fn first_gradients(trainer: &mut Trainer) -> BTreeMap<String, Tensor> {
    let mut first = Vec::new();
    let look = |_: &_, grads: &slime_trainer::Gradients| {
        if first.is_empty() {
            first = grads.whole()?;
        }
        Ok(())
    };
    trainer.train_rollout_with(&rollout(4, 4), look).unwrap();
    let grads = trainer.policy().params().whole_gradients(&first).map(Result::unwrap);
    grads.map(|(name, tensor)| (name, tensor.unwrap().copy())).collect()
}

fn assert_near(got: &Tensor, expected: &Tensor, what: &str) {
    let largest = expected.abs().max().double_value(&[]).max(1e-9);
    let apart = (got - expected).abs().max().double_value(&[]) / largest;
    assert!(apart < 1e-9, "{what} differs by {apart:e}");
}

#[test]
fn adapters_alone_are_trained() {
    let check = |comm: Arc<dyn Communicator>| {
        let mut settings = settings();
        settings.train.weight_decay = 0.1;
        let lora = Lora { targets: vec!["*.1.self_attn.v_proj.weight".to_owned()], ..lora() };
        let mut trainer = Trainer::new(adapted("llama", Kind::Float, &lora), comm, settings).unwrap();
        let base = whole(&trainer);
        trainer.train_rollout(&rollout(4, 4)).unwrap();
        trainer.train_rollout(&rollout(4, 4)).unwrap();
        for (name, tensor) in whole(&trainer) {
            let is_adapted = name == "model.layers.1.self_attn.v_proj.weight";
            assert_eq!(!tensor.equal(&base[&name]), is_adapted, "{name}");
        }
        for buffer in trainer.buffers() {
            assert!(buffer.name.contains("/layers.1.self_attn.v_proj.lora_"), "{}", buffer.name);
        }
    };
    check(Arc::new(Single));
    Threads::spawn(2, |comm| check(Arc::new(comm))).unwrap();
}

#[test]
fn gradients_are_those_of_the_matrices_through_the_product() {
    // glm4_moe has shared experts, glm4 gate and up in one matrix.
    for name in ["llama", "qwen2", "glm4", "glm4_moe"] {
        let lora = lora();
        let of_matrices = first_gradients(&mut trainer(model(name, Kind::Double), &settings()));
        let mut adapted = trainer(adapted(name, Kind::Double, &lora), &settings());
        let adapters: BTreeMap<String, Tensor> = {
            let adapters = adapted.policy().params().whole_adapters().map(Result::unwrap);
            adapters.map(|(name, tensor)| (name, tensor.unwrap().copy())).collect()
        };
        let of_adapters = first_gradients(&mut adapted);
        assert_eq!(of_adapters.len(), adapters.len());
        for (name, a) in adapters.iter().filter(|(name, _)| name.ends_with("lora_A.weight")) {
            let module = name.strip_suffix(".lora_A.weight").unwrap();
            // B is 0, so that of A is; dB = s dW A^T.
            let expected = of_matrices[&format!("{module}.weight")].matmul(&a.tr()) * lora.scale();
            assert_near(&of_adapters[&format!("{module}.lora_B.weight")], &expected, module);
            assert!(of_adapters[name].abs().max().double_value(&[]) <= 0.0, "{name}");
        }
    }
}

#[test]
fn merged_weights_compute_what_the_adapters_do() {
    let mut settings = settings();
    settings.train.lr = 0.02;
    let mut trained = trainer(adapted("qwen3", Kind::Double, &lora()), &settings);
    trained.train_rollout(&rollout(4, 4)).unwrap();
    let merged = whole(&trained);
    let plain = model("qwen3", Kind::Double);
    tch::no_grad(|| {
        for (name, view) in plain.params().views().unwrap() {
            view.shallow_clone().copy_(&merged[&name]);
        }
    });
    let log_probs = |trainer: &mut Trainer| trainer.train_rollout(&rollout(3, 4)).unwrap()[0].log_probs;
    let (got, expected) = (log_probs(&mut trained), log_probs(&mut trainer(plain, &settings)));
    assert!((got - expected).abs() < 1e-12, "{got} and {expected}");
    // And not what they were before.
    let untrained = log_probs(&mut trainer(model("qwen3", Kind::Double), &settings));
    assert!((got - untrained).abs() > 1e-3, "{got} and {untrained}");
}

#[test]
fn recomputed_layers_give_the_same_bits() {
    let of = |recompute| {
        let mut settings = settings();
        (settings.num_steps_per_rollout, settings.train.recompute) = (2, recompute);
        let mut trainer = trainer(adapted("qwen3", Kind::Float, &lora()), &settings);
        trainer.train_rollout(&rollout(4, 4)).unwrap();
        whole(&trainer)
    };
    let expected = of(Recompute::None);
    for recompute in [Recompute::Selective, Recompute::Full] {
        for (name, tensor) in of(recompute) {
            assert!(tensor.equal(&expected[&name]), "{name} with {recompute:?}");
        }
    }
}

#[test]
fn reference_is_the_policy_without_its_adapters() {
    for kl_loss_type in [KlLossType::LowVarKl, KlLossType::Full] {
        let mut settings = settings();
        settings.num_steps_per_rollout = 2;
        settings.algorithm.kl_loss_coef = Some(0.1);
        settings.algorithm.kl_loss_type = kl_loss_type;
        settings.reference_is_start = true;
        // The first step's log-probs are those of the reference, and the old ones, to the bit.
        settings.checks.first_step = true;
        settings.checks.on_failure = OnFailure::Fail;
        let of = |reference: Option<Model>| {
            let roles = Roles { reference, ..Roles::from(adapted("llama", Kind::Float, &lora())) };
            let mut trainer = trainer(roles, &settings);
            let steps = [
                trainer.train_rollout(&rollout(4, 4)).unwrap(),
                trainer.train_rollout(&rollout(3, 4)).unwrap(),
            ];
            let last = steps[1].last().unwrap().clone();
            assert!(last.ref_log_probs.is_some());
            (last.loss.to_bits(), last.grad_norm.to_bits(), whole(&trainer))
        };
        let (loss, norm, weights) = of(None);
        let (expected_loss, expected_norm, expected) = of(Some(model("llama", Kind::Float)));
        assert_eq!((loss, norm), (expected_loss, expected_norm));
        assert!(weights.iter().all(|(name, tensor)| tensor.equal(&expected[name])));
    }
}

#[test]
fn state_goes_on_where_it_was() {
    let fresh = || trainer(adapted("llama", Kind::BFloat16, &lora()), &settings());
    let mut first = fresh();
    first.train_rollout(&rollout(4, 4)).unwrap();
    let mut resumed = fresh();
    for buffer in first.buffers() {
        resumed.write_buffer(&buffer.name, &first.read_buffer(&buffer.name).unwrap()).unwrap();
    }
    resumed.resume(first.progress()).unwrap();
    for trainer in [&mut first, &mut resumed] {
        trainer.train_rollout(&rollout(3, 4)).unwrap();
    }
    let (got, expected) = (whole(&resumed), whole(&first));
    assert!(got.iter().all(|(name, tensor)| tensor.equal(&expected[name])));
}

#[test]
fn what_has_no_adapter_is_refused_by_name() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/qwen3_moe");
    let lora = Lora { targets: vec!["*.mlp.*_proj.weight".to_owned()], ..lora() };
    let extra = Extra::Adapters { lora: &lora, seed: 5 };
    let error = Model::load_part(dir, (Kind::Float, Device::Cpu), extra, None).unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("experts.0.gate_proj.weight, which has no adapter"), "{error}");
}
