//! Experts computed behind four-bit codes: gradients of what is computed, on several ranks, computed again.
#![allow(clippy::unwrap_used, reason = "a test")]

mod tiny;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{LossType, Recompute};
use slime_kernel::fake_int4::fake_int4;
use slime_model::{Extra, Model, Parallel};
use slime_trainer::{Settings, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::{rollout, settings};

/// Of groups; experts of the fixture have 32 and 16 columns.
const GROUP: u32 = 8;

fn load(comm: &Arc<dyn Communicator>, layout: Layout) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/qwen3_moe");
    let mesh = Mesh::new(layout, comm.size()).unwrap();
    let parallel = (comm.size() > 1).then(|| Arc::new(Parallel::new(comm, mesh, Device::Cpu).unwrap()));
    Model::load_part(dir, (Kind::Float, Device::Cpu), Extra::None, parallel).unwrap()
}

fn imitating(is_qat: bool) -> Settings {
    let mut settings = settings();
    settings.algorithm.loss = LossType::Sft;
    settings.int4_group_size = is_qat.then_some(GROUP);
    settings.train.max_tokens_per_gpu = 40;
    settings
}

/// Losses, and gradients by the names of their tensors.
type Run = (Vec<f64>, Vec<(String, Tensor)>);

/// Loss and whole gradients of every step of some rollouts, on every rank.
fn train(model: Model, comm: Arc<dyn Communicator>, settings: Settings, num: usize) -> Run {
    let mut trainer = Trainer::new(model, comm, settings).unwrap();
    let (mut losses, mut grads) = (Vec::new(), Vec::new());
    for _ in 0..num {
        let steps = trainer.train_rollout_with(&rollout(4, 3), |_, of_step| {
            grads.extend(of_step.whole()?);
            Ok(())
        });
        losses.extend(steps.unwrap().iter().map(|step| step.loss));
    }
    (losses, grads)
}

fn on(layout: Layout, settings: &Settings, num: usize) -> Vec<Run> {
    tch::set_num_threads(1);
    let run = |comm: Arc<dyn Communicator>| train(load(&comm, layout), comm, settings.clone(), num);
    match layout.tp * layout.pp * layout.dp * layout.cp {
        1 => vec![run(Arc::new(Single))],
        size => Threads::spawn(size, |comm| run(Arc::new(comm))).unwrap(),
    }
}

#[test]
fn gradients_are_those_at_the_weights_behind_the_codes() {
    let comm = || Arc::new(Single) as Arc<dyn Communicator>;
    let straight = on(Layout::default(), &imitating(true), 1).remove(0);
    let model = load(&comm(), Layout::default());
    let mut num_changed = 0;
    for (spec, tensor) in model.params().iter().filter(|(spec, _)| spec.name.contains("experts_")) {
        let behind = fake_int4(tensor, i64::from(GROUP)).unwrap();
        assert!(!behind.equal(tensor), "{}", spec.name);
        tch::no_grad(|| tensor.shallow_clone().copy_(&behind));
        num_changed += 1;
    }
    assert_eq!(num_changed, 2);
    let at_codes = train(model, comm(), imitating(false), 1);
    assert_eq!(straight.0, at_codes.0);
    assert!(straight.1.len() > 10);
    for ((name, got), (_, expected)) in straight.1.iter().zip(&at_codes.1) {
        assert!(got.equal(expected), "{name}");
    }
}

#[test]
fn every_layout_and_recomputation_learns_alike() {
    let alone = on(Layout::default(), &imitating(true), 6).remove(0);
    let plain = on(Layout::default(), &imitating(false), 6).remove(0);
    let (first, last) = (alone.0[0], alone.0[5]);
    assert!(last < 0.9 * first && plain.0[5] < 0.9 * plain.0[0], "{:?} {:?}", alone.0, plain.0);
    assert!((first - plain.0[0]).abs() > 1e-4, "codes change nothing");
    for [tp, pp, dp, cp, ep, etp] in
        [[1, 1, 2, 1, 2, 1], [1, 1, 3, 1, 3, 1], [2, 1, 1, 1, 1, 2], [1, 2, 2, 1, 2, 1], [2, 1, 1, 2, 2, 2]]
    {
        let layout = Layout { tp, pp, dp, cp, ep, etp };
        for (losses, _) in on(layout, &imitating(true), 3) {
            for (got, expected) in losses.iter().zip(&alone.0) {
                assert!((got / expected - 1.0).abs() < 1e-4, "{layout:?}: {losses:?}, alone {:?}", alone.0);
            }
        }
    }
    for recompute in [Recompute::Selective, Recompute::Full] {
        let mut settings = imitating(true);
        settings.train.recompute = recompute;
        let again = on(Layout::default(), &settings, 6).remove(0);
        assert_eq!(again.0, alone.0, "{recompute:?}");
    }
}

#[test]
fn groups_that_a_rank_would_cut_are_refused_by_name() {
    let comm: Arc<dyn Communicator> = Arc::new(Single);
    let mut settings = imitating(true);
    settings.int4_group_size = Some(32);
    let error = Trainer::new(load(&comm, Layout::default()), comm, settings).map(drop).unwrap_err();
    assert!(error.to_string().contains("layers.1.experts_down with 16 on this rank"), "{error}");
    assert_eq!(error.exit_code(), 78);
    let refusals = Threads::spawn(4, |comm| {
        let comm: Arc<dyn Communicator> = Arc::new(comm);
        let model = load(&comm, Layout { tp: 4, etp: 4, ..Layout::default() });
        Trainer::new(model, comm, imitating(true)).map(drop).unwrap_err().to_string()
    });
    for error in refusals.unwrap() {
        assert!(error.contains("layers.1.experts_down with 4 on this rank"), "{error}");
    }
}
