//! What a trainer resumes from, what must hold of its steps, and what it says of samples and models that it lacks.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::Single;
use slime_config::{AdvantageEstimator, CorrectionWeight, LossType, OnFailure};
use slime_model::Model;
use slime_trainer::{Buffer, Error, NotFinite, Roles, Scored, Settings, Trainer};
use tch::{Device, Kind};
use tiny::{model, rollout, settings, trainer};

#[test]
fn critic_and_moving_reference_resume_to_the_same_bits() {
    let scored = rollout(3, 4);
    let make = || {
        let mut settings = settings();
        settings.algorithm.advantage_estimator = AdvantageEstimator::Ppo;
        settings.algorithm.kl_loss_coef = Some(0.1);
        settings.critic.num_critic_only_steps = 1;
        settings.ref_update_interval = Some(2);
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
        let roles = Roles {
            reference: Some(model("llama", Kind::Float)),
            critic: Some(Model::load_with_value_head(dir, Kind::Float, Device::Cpu, 3).unwrap()),
            ..Roles::from(model("llama", Kind::Float))
        };
        Trainer::new(roles, Arc::new(Single), settings).unwrap()
    };
    let mut whole = make();
    let first = whole.train_rollout(&scored).unwrap().remove(0);
    assert!(!first.is_update && first.extra["train/critic-value_loss"] > 0.0);
    assert_eq!(whole.progress().optimizer_step, 0, "the critic learns alone at first");
    whole.train_rollout(&scored).unwrap();
    let second = whole.train_rollout(&scored).unwrap().remove(0);
    assert_eq!(second.kl_loss.to_bits(), 0, "after two rollouts the reference is the policy");
    let mut resumed = make();
    for Buffer { name, .. } in whole.buffers() {
        resumed.write_buffer(&name, &whole.read_buffer(&name).unwrap()).unwrap();
    }
    resumed.resume(whole.progress()).unwrap();
    let expected = whole.train_rollout(&scored).unwrap();
    assert!(expected[0].kl_loss > 0.0);
    assert_eq!(resumed.train_rollout(&scored).unwrap(), expected);
    for name in ["critic/master/score", "reference/embed", "exp_avg/embed"] {
        assert_eq!(whole.read_buffer(name).unwrap(), resumed.read_buffer(name).unwrap(), "{name}");
    }
    for name in ["reference/nothing", "critic/exp_avg/nothing"] {
        assert_eq!(resumed.write_buffer(name, &[]).unwrap_err().exit_code(), 65);
    }
}

#[test]
fn checks_hold_exactly_and_are_noticed_when_they_do_not() {
    let checked = |reference: &str| {
        let mut settings = settings();
        settings.num_steps_per_rollout = 2;
        settings.algorithm.kl_loss_coef = Some(0.1);
        settings.reference_is_start = true;
        settings.checks.on_failure = OnFailure::Fail;
        let reference = Some(model(reference, Kind::Float));
        let roles = Roles { reference, ..Roles::from(model("llama", Kind::Float)) };
        Trainer::new(roles, Arc::new(Single), settings).unwrap()
    };
    let scored = rollout(3, 4);
    let mut trainer = checked("llama");
    let steps = trainer.train_rollout(&scored).unwrap();
    assert!(steps[0].kl_loss == 0.0 && steps[0].ppo_kl == 0.0);
    assert!(
        (steps[0].extra["train/ois"] - 1.0).abs() < 1e-6,
        "coefficients add up to 1 but for their rounding"
    );
    assert!(steps[1].ppo_kl != 0.0);
    trainer.train_rollout(&scored).unwrap();
    let error = checked("llama_tied").train_rollout(&scored).unwrap_err();
    assert!(error.to_string().starts_with("before the run's first update log-probs differ"), "{error}");
    assert_eq!(error.exit_code(), 65);

    let mut bounded = settings();
    bounded.checks.max_mismatch = Some(1e-3);
    bounded.checks.on_failure = OnFailure::Fail;
    let mut recorded = rollout(3, 4);
    for scored in &mut recorded {
        scored.sample.rollout_log_probs = vec![-4.0; scored.sample.response_len()];
    }
    let mut trainer = trainer_of(bounded.clone());
    let error = trainer.train_rollout(&recorded).unwrap_err().to_string();
    assert!(error.contains("more than checks.max_mismatch 0.001"), "{error}");
    bounded.checks.on_failure = OnFailure::Warn;
    trainer_of(bounded).train_rollout(&recorded).unwrap();
}

fn trainer_of(settings: Settings) -> Trainer {
    trainer(Kind::Float, Arc::new(Single), settings)
}

#[test]
fn samples_whose_loss_is_not_finite_are_named() {
    let mut scored = rollout(2, 4);
    let mut settings = settings();
    settings.algorithm.correction.weight = CorrectionWeight::Truncate;
    for scored in &mut scored {
        scored.sample.rollout_log_probs = vec![-4.0; scored.sample.response_len()];
    }
    // A sample of another engine that recorded nothing.
    scored[6].sample.rollout_log_probs.clear();
    let error = trainer_of(settings).train_rollout(&scored).unwrap_err();
    assert!(
        matches!(&error, Error::NotFinite(NotFinite { what: "loss", samples, .. }) if samples.len() == 1),
        "{error}"
    );
    assert!(error.to_string().contains("unchanged by this step\nsamples: 0/1/2.0.0\nhint: "), "{error}");
}

#[test]
fn formulas_name_the_models_and_samples_they_lack() {
    let scored = rollout(2, 4);
    let mut lacking = settings();
    lacking.algorithm.advantage_estimator = AdvantageEstimator::Ppo;
    let refused =
        |settings| Trainer::new(model("llama", Kind::Float), Arc::new(Single), settings).err().unwrap();
    let error = refused(lacking);
    assert_eq!(
        (error.to_string().as_str(), error.exit_code()),
        ("the configured loss needs a critic with a value head", 78)
    );
    let mut lacking = settings();
    lacking.algorithm.loss = LossType::Dpo;
    assert_eq!(refused(lacking.clone()).to_string(), "the configured loss needs a reference");
    lacking.algorithm.loss = LossType::RewardModel;
    assert_eq!(refused(lacking).to_string(), "the configured loss needs a policy with a value head");

    let mut distilled = settings();
    distilled.algorithm.advantage_estimator = AdvantageEstimator::Distillation;
    distilled.opd_kl_coef = Some(1.0);
    let error = trainer_of(distilled).train_rollout(&scored).unwrap_err().to_string();
    assert!(error.starts_with("sample 0/0/0.0.0: teacher_log_probs: expected a finite number"), "{error}");

    let mut process = scored.clone();
    process[2].token_rewards = vec![0.5; process[2].sample.response_len()];
    trainer_of(settings()).train_rollout(&process).unwrap();
    let mut rloo = settings();
    rloo.algorithm.advantage_estimator = AdvantageEstimator::Rloo;
    let error = trainer_of(rloo).train_rollout(&process).unwrap_err().to_string();
    assert!(error.starts_with("sample 0/0/2.0.0: token_rewards: expected none with rloo"), "{error}");
    process[2].token_rewards.pop();
    let error = trainer_of(settings()).train_rollout(&process).unwrap_err().to_string();
    assert!(error.contains("token_rewards: expected ") && error.contains("values or none"), "{error}");

    let roles =
        || Roles { reference: Some(model("llama", Kind::Float)), ..Roles::from(model("llama", Kind::Float)) };
    let mut pairs = settings();
    pairs.algorithm.loss = LossType::Dpo;
    let train = |scored: &[Scored]| {
        let mut trainer = Trainer::new(roles(), Arc::new(Single), pairs.clone()).unwrap();
        trainer.train_rollout(scored).map_err(|error| error.to_string())
    };
    let error = train(&scored).unwrap_err();
    assert_eq!(
        error,
        "sample 0/0/0.0.0: group: expected 2 samples: the better answer, then the worse, got 4"
    );
    let mut empty = rollout(2, 2);
    empty[3].sample.loss_mask.fill(0);
    let error = train(&empty).unwrap_err();
    assert_eq!(
        error,
        "sample 0/1/1.0.0: loss_mask: expected a trained token in both answers of a pair, got none"
    );
    assert!(train(&rollout(2, 2)).is_ok());
}
