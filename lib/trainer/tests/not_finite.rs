//! What a loss or gradient that is not a number does: the run ends, or the optimizer step is left out on every rank alike.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{CorrectionWeight, OnNotFinite};
use slime_model::{Extra, Model, Parallel};
use slime_trainer::{Error, NotFinite, Report, Result, Scored, Settings, StepMetrics, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{rollout, settings};

/// What makes a step's numbers overflow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Poison {
    /// A sample that recorded no log-probs beside others that did.
    Loss,
    /// Weights with a finite loss whose slope is not.
    Gradient,
}

fn skipping(poison: Poison) -> Settings {
    let mut settings = settings();
    settings.num_steps_per_rollout = 2;
    settings.checks.on_not_finite = OnNotFinite::Skip;
    settings.checks.first_step = false;
    if poison == Poison::Loss {
        settings.algorithm.correction.weight = CorrectionWeight::Truncate;
    }
    settings
}

/// Two optimizer steps of which the first is poisoned, where it is the loss.
fn poisoned(poison: Poison) -> Vec<Scored> {
    let mut scored = rollout(4, 4);
    if poison == Poison::Loss {
        for scored in &mut scored {
            scored.sample.rollout_log_probs = vec![-4.0; scored.sample.response_len()];
        }
        scored[6].sample.rollout_log_probs.clear();
    }
    scored
}

fn load(comm: &Arc<dyn Communicator>, tp: usize, poison: Poison) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
    let mesh = Mesh::new(Layout { tp, dp: comm.size() / tp, ..Layout::default() }, comm.size()).unwrap();
    let parallel = (tp > 1).then(|| Arc::new(Parallel::new(comm, mesh, Device::Cpu).unwrap()));
    let model = Model::load_part(dir, (Kind::Float, Device::Cpu), Extra::None, parallel).unwrap();
    if poison == Poison::Gradient {
        tch::no_grad(|| {
            let _ = model.params().get("final_norm").unwrap().f_mul_scalar_(1e37).unwrap();
            let _ = model.params().get("embed").unwrap().f_mul_scalar_(1e-7).unwrap();
        });
    }
    model
}

struct Run {
    steps: Result<Vec<StepMetrics>>,
    report: Report,
    num_updates: u64,
    before: Vec<Tensor>,
    after: Vec<Tensor>,
}

fn run(comm: Arc<dyn Communicator>, tp: usize, poison: Poison, settings: &Settings) -> Run {
    let model = load(&comm, tp, poison);
    let mut trainer = Trainer::new(model, comm, settings.clone()).unwrap();
    let weights = |trainer: &Trainer| {
        trainer.policy().params().iter().map(|(_, tensor)| tensor.detach().copy()).collect()
    };
    let before = weights(&trainer);
    let steps = trainer.train_rollout(&poisoned(poison));
    let (report, num_updates) = (trainer.take_report(), trainer.progress().optimizer_step);
    Run { steps, report, num_updates, before, after: weights(&trainer) }
}

/// On one rank, two that have the samples between them, and two that share the model.
fn on_every_layout(poison: Poison, settings: &Settings, check: impl Fn(&Run)) {
    check(&run(Arc::new(Single), 1, poison, settings));
    for tp in [1, 2] {
        let ranks = Threads::spawn(2, |comm| run(Arc::new(comm), tp, poison, settings)).unwrap();
        ranks.iter().for_each(&check);
    }
}

fn is_same(a: &[Tensor], b: &[Tensor]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.equal(b))
}

#[test]
fn a_step_whose_loss_is_not_finite_is_left_out_and_its_samples_are_told() {
    on_every_layout(Poison::Loss, &skipping(Poison::Loss), |run| {
        let steps = run.steps.as_ref().unwrap();
        assert!(steps[0].is_skipped && !steps[0].is_update && !steps[1].is_skipped && steps[1].is_update);
        assert_eq!(run.num_updates, 1, "the schedule does not move by a step that is left out");
        assert!(steps[1].loss.is_finite() && steps[1].grad_norm > 0.0);
        assert!(!is_same(&run.before, &run.after), "the second step is trained");
        assert!(run.after.iter().all(|tensor| bool::try_from(tensor.isfinite().all()).unwrap()));
        let [NotFinite { step: 0, what: "loss", samples, .. }] = run.report.skipped.as_slice() else {
            panic!("{:?}", run.report.skipped)
        };
        assert_eq!(samples.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0/1/2.0.0"]);
    });
}

#[test]
fn a_step_whose_gradient_is_not_finite_changes_nothing() {
    on_every_layout(Poison::Gradient, &skipping(Poison::Gradient), |run| {
        let steps = run.steps.as_ref().unwrap();
        assert!(steps.iter().all(|step| step.is_skipped), "{steps:?}");
        assert_eq!(run.num_updates, 0);
        assert!(is_same(&run.before, &run.after));
        let [first, second] = run.report.skipped.as_slice() else { panic!("{:?}", run.report.skipped) };
        assert_eq!((first.what, first.samples.len(), second.samples.len()), ("gradient norm", 8, 8));
    });
}

#[test]
fn by_default_the_run_ends_and_names_the_samples() {
    for (poison, num_samples) in [(Poison::Loss, 1), (Poison::Gradient, 8)] {
        let mut settings = skipping(poison);
        settings.checks.on_not_finite = OnNotFinite::Fail;
        on_every_layout(poison, &settings, |run| {
            let error = run.steps.as_ref().unwrap_err();
            assert!(
                matches!(error, Error::NotFinite(NotFinite { samples, .. }) if samples.len() == num_samples),
                "{error}"
            );
            assert_eq!(error.exit_code(), 65);
            assert!(error.to_string().contains("\nhint: checks.on_not_finite"), "{error}");
            assert!(is_same(&run.before, &run.after));
        });
    }
}
