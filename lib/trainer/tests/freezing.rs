//! Frozen parameters keep their bits, have no state, and change nothing for the others.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::sync::Arc;

use slime_comm::{Communicator, Single, Threads};
use slime_config::OnFailure;
use slime_trainer::{Settings, Trainer};
use tch::{Kind, Tensor};
use tiny::{model, rollout, settings};

/// The name of every storage, and whether two steps changed its bits.
fn changed(trainer: &mut Trainer) -> Vec<(String, bool)> {
    let weights = |trainer: &Trainer| -> Vec<Tensor> {
        trainer.policy().params().iter().map(|(_, tensor)| tensor.detach().copy()).collect()
    };
    let before = weights(trainer);
    for _ in 0..2 {
        trainer.train_rollout(&rollout(4, 4)).unwrap();
    }
    let after = weights(trainer);
    let names = trainer.policy().params().iter().map(|(spec, _)| spec.name.clone());
    names.zip(before.iter().zip(&after)).map(|(name, (a, b))| (name, !a.equal(b))).collect()
}

fn freezing(patterns: &[&str]) -> Settings {
    let mut settings = settings();
    settings.train.freeze = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    settings.train.weight_decay = 0.1;
    settings
}

#[test]
fn frozen_parameters_keep_their_bits_and_have_no_state() {
    // All before the second layer, so that nothing of it has a gradient; and a matrix behind it.
    let patterns = ["model.embed_tokens.weight", "model.layers.0.*", "model.layers.1.mlp.down_proj.weight"];
    let check = |comm: Arc<dyn Communicator>| {
        let mut trainer = Trainer::new(model("llama", Kind::Float), comm, freezing(&patterns)).unwrap();
        for (name, has_changed) in changed(&mut trainer) {
            let is_frozen = name == "embed" || name.starts_with("layers.0.") || name == "layers.1.down";
            assert_eq!(has_changed, !is_frozen, "{name}");
        }
        for buffer in trainer.buffers() {
            let storage = buffer.name.split_once('/').unwrap().1.to_owned();
            assert!(!storage.starts_with("layers.0.") && storage != "embed" && storage != "layers.1.down");
        }
    };
    check(Arc::new(Single));
    Threads::spawn(2, |comm| check(Arc::new(comm))).unwrap();
}

#[test]
fn log_probs_before_the_first_update_are_those_of_training() {
    // Without a gradient before the second layer another op could take over.
    let mut settings = freezing(&["model.embed_tokens.weight", "model.layers.0.*"]);
    settings.num_steps_per_rollout = 2;
    settings.checks.first_step = true;
    settings.checks.on_failure = OnFailure::Fail;
    let mut trainer = Trainer::new(model("llama", Kind::Float), Arc::new(Single), settings).unwrap();
    let steps = trainer.train_rollout(&rollout(4, 4)).unwrap();
    assert_eq!(steps[0].ppo_kl.to_bits(), 0.0_f64.to_bits());
    assert!(steps[1].ppo_kl.abs() > 0.0);
}

#[test]
fn what_cannot_be_frozen_is_told() {
    let error = |patterns: &[&str]| {
        let made = Trainer::new(model("llama", Kind::Float), Arc::new(Single), freezing(patterns));
        let error = made.err().unwrap();
        assert_eq!(error.exit_code(), 78);
        error.to_string()
    };
    assert!(
        error(&["model.layer.*"])
            .contains("\"model.layer.*\" matches no parameter of the model\nhint: did you mean")
    );
    assert!(
        error(&["*.gate_proj.weight"])
            .contains("model.layers.0.mlp.up_proj.weight, which has one buffer with it")
    );
    assert!(error(&["*"]).contains("nothing is left to train"));
}
