//! Training with products in fp8: beside full precision, computed again, on several ranks, continued from its state.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;
mod tiny;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Mesh, Single, Threads};
use slime_config::{AdvantageEstimator, Fp8, Fp8Scaling, LossType, Recompute};
use slime_model::{Extra, Model, Parallel};
use slime_record::Sample;
use slime_trainer::{Roles, Scored, Settings, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::sized::Shape;
use tiny::{rollout, settings};

/// Widths that blocks of 128 divide, on two ranks too.
const DENSE: Shape = Shape { hidden: 256, intermediate: 512, vocab: 96, num_layers: 2, heads: [4, 2] };
const SCALINGS: [Fp8Scaling; 2] = [Fp8Scaling::Tensor, Fp8Scaling::Block];

fn experts() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/qwen3_moe")
}

fn with(scaling: Option<Fp8Scaling>) -> Settings {
    let mut settings = settings();
    settings.train.fp8 = scaling.map(|scaling| Fp8 { scaling, amax_history_len: 3 });
    settings.num_steps_per_rollout = 2;
    settings.train.max_tokens_per_gpu = 40;
    settings
}

/// Imitation, whose loss falls by itself.
fn imitating(scaling: Option<Fp8Scaling>) -> Settings {
    let mut settings = with(scaling);
    settings.algorithm.loss = LossType::Sft;
    settings
}

fn load(dir: &Path, extra: Extra, comm: &Arc<dyn Communicator>, layout: Layout) -> Model {
    let mesh = Mesh::new(layout, comm.size()).unwrap();
    let parallel = (comm.size() > 1).then(|| Arc::new(Parallel::new(comm, mesh, Device::Cpu).unwrap()));
    Model::load_part(dir, (Kind::Float, Device::Cpu), extra, parallel).unwrap()
}

fn trainer(dir: &Path, settings: &Settings, comm: Arc<dyn Communicator>, layout: Layout) -> Trainer {
    Trainer::new(load(dir, Extra::None, &comm, layout), comm, settings.clone()).unwrap()
}

/// The loss of every optimizer step of some rollouts.
fn losses(trainer: &mut Trainer, num_rollouts: usize, scored: &[Scored]) -> Vec<f64> {
    let rollouts = (0..num_rollouts).flat_map(|_| trainer.train_rollout(scored).unwrap());
    rollouts.map(|step| step.loss).collect()
}

fn weights(trainer: &Trainer) -> Vec<Tensor> {
    trainer.policy().params().iter().map(|(_, tensor)| tensor.detach().copy()).collect()
}

#[test]
fn the_loss_falls_as_in_full_precision() {
    tch::set_num_threads(1);
    let dense = tempfile::tempdir().unwrap();
    DENSE.write(dense.path());
    let one = || Arc::new(Single) as Arc<dyn Communicator>;
    for (dir, scalings) in [(dense.path(), &SCALINGS[..]), (&experts(), &SCALINGS[..1])] {
        let of = |scaling| {
            let mut trainer = trainer(dir, &imitating(scaling), one(), Layout::default());
            losses(&mut trainer, 8, &rollout(4, 3))
        };
        let expected = of(None);
        let (first, last) = (expected[0], expected[expected.len() - 1]);
        assert!(last < 0.7 * first, "{expected:?}");
        for scaling in scalings {
            let got = of(Some(*scaling));
            let apart = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs() / first);
            let most = apart.fold(0.0, f64::max);
            println!("{}, {scaling:?}: at most {most:.4} of the first loss apart", dir.display());
            assert!(most > 1e-5 && most < 0.03, "{scaling:?}: {got:?}, without {expected:?}");
        }
    }
}

/// Samples of 192 tokens, of which each but one in eight follows from the one before; other ones for every step.
fn sequences(step: u32) -> Vec<Scored> {
    let mut state = step.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let sample = |group: u32| {
        let mut tokens = vec![next(512)];
        for at in 1..192 {
            let before: u32 = tokens[at - 1];
            tokens.push(if next(8) == 0 { next(512) } else { (before * 37 + 11) % 512 });
        }
        let (loss_mask, prompt_len) = (vec![1; 191], 1);
        Scored::new(Sample { group, tokens, prompt_len, loss_mask, ..Sample::default() }, 1.0)
    };
    (0..32).map(sample).collect()
}

#[test]
fn the_loss_falls_as_in_bf16_on_a_gpu() {
    if !gate::has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    Shape { hidden: 512, intermediate: 1536, vocab: 512, num_layers: 4, heads: [8, 4] }.write(dir.path());
    let run = |scaling| {
        let mut settings = imitating(scaling);
        (settings.num_steps_per_rollout, settings.train.max_tokens_per_gpu, settings.train.lr) =
            (1, 8192, 1e-3);
        settings.train.warmup_steps = 20;
        let model = Model::load(dir.path(), Kind::BFloat16, Device::Cuda(0)).unwrap();
        let mut trainer = Trainer::new(model, Arc::new(Single), settings).unwrap();
        (0..400).map(|step| trainer.train_rollout(&sequences(step)).unwrap()[0].loss).collect::<Vec<_>>()
    };
    let curves = [None, Some(Fp8Scaling::Tensor), Some(Fp8Scaling::Block)].map(run);
    println!("step: loss in bf16, in fp8 by tensor, by block (mean of ten steps)");
    let mean = |curve: &[f64], at: usize| curve[at - 10..at].iter().sum::<f64>() / 10.0;
    for at in (10..=400).step_by(30) {
        println!("{at}: {:.4} {:.4} {:.4}", mean(&curves[0], at), mean(&curves[1], at), mean(&curves[2], at));
    }
    let [bf16, tensor, block] = curves.map(|curve| mean(&curve, 400));
    assert!(bf16 < 2.0, "nothing was learned: {bf16}");
    assert!(
        (tensor / bf16 - 1.0).abs() < 0.03 && (block / bf16 - 1.0).abs() < 0.03,
        "{bf16} {tensor} {block}"
    );
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    tch::set_num_threads(1);
    let dense = tempfile::tempdir().unwrap();
    DENSE.write(dense.path());
    for (dir, scalings) in [(dense.path(), &SCALINGS[..]), (&experts(), &SCALINGS[..1])] {
        for scaling in scalings {
            let of = |recompute| {
                let mut settings = with(Some(*scaling));
                settings.train.recompute = recompute;
                let mut trainer = trainer(dir, &settings, Arc::new(Single), Layout::default());
                losses(&mut trainer, 2, &rollout(4, 3));
                weights(&trainer)
            };
            let kept = of(Recompute::None);
            for recompute in [Recompute::Selective, Recompute::Full] {
                for (at, (got, expected)) in of(recompute).iter().zip(&kept).enumerate() {
                    assert!(
                        got.equal(expected),
                        "{}, {scaling:?}, {recompute:?}: storage {at}",
                        dir.display()
                    );
                }
            }
        }
    }
}

/// The histories of every rank.
fn histories(trainer: &Trainer) -> BTreeMap<String, Vec<f32>> {
    let names =
        trainer.buffers().into_iter().map(|buffer| buffer.name).filter(|name| name.starts_with("fp8/"));
    names.map(|name| (name.clone(), trainer.read_buffer(&name).unwrap())).collect()
}

#[test]
fn split_models_have_the_scales_and_nearly_the_loss_of_one_rank() {
    tch::set_num_threads(1);
    let dense = tempfile::tempdir().unwrap();
    DENSE.write(dense.path());
    let experts = experts();
    let of = |size: usize, dir: &Path, scaling: Fp8Scaling, layout: Layout| {
        let run = |comm: Arc<dyn Communicator>| {
            // Small steps, so that what is rounded otherwise does not grow from one to the next.
            let mut settings = imitating(Some(scaling));
            settings.train.lr = 1e-4;
            let mut trainer = trainer(dir, &settings, comm, layout);
            (losses(&mut trainer, 2, &rollout(4, 3)), histories(&trainer))
        };
        match size {
            1 => vec![run(Arc::new(Single))],
            size => Threads::spawn(size, |comm| run(Arc::new(comm))).unwrap(),
        }
    };
    for (dir, scaling, layouts) in [
        (dense.path(), Fp8Scaling::Block, vec![[2, 1, 1, 1, 1], [1, 2, 1, 1, 1], [1, 1, 3, 1, 1]]),
        (
            dense.path(),
            Fp8Scaling::Tensor,
            vec![[2, 1, 1, 1, 1], [1, 2, 1, 1, 1], [1, 1, 2, 1, 1], [2, 1, 1, 2, 1]],
        ),
        (&experts, Fp8Scaling::Tensor, vec![[1, 1, 2, 1, 2], [1, 1, 3, 1, 3], [1, 2, 2, 1, 2]]),
    ] {
        let alone = of(1, dir, scaling, Layout::default()).remove(0);
        for [tp, pp, dp, cp, ep] in layouts {
            let layout = Layout { tp, pp, dp, cp, ep, ..Layout::default() };
            let ranks = of(tp * pp * dp * cp, dir, scaling, layout);
            let mut all = BTreeMap::new();
            for (losses, histories) in &ranks {
                for (got, expected) in losses.iter().zip(&alone.0) {
                    assert!(
                        (got / expected - 1.0).abs() < 5e-3,
                        "{layout:?}, {scaling:?}: {losses:?}, {alone:?}"
                    );
                }
                for (name, history) in histories {
                    let known = all.entry(name.clone()).or_insert_with(|| history.clone());
                    assert_eq!(history, known, "{layout:?}: {name} differs between ranks");
                }
            }
            assert_eq!(all.len(), alone.1.len());
            for (name, history) in &all {
                let apart = history
                    .iter()
                    .zip(&alone.1[name])
                    .map(|(a, b)| (a - b).abs() / b.abs().max(f32::MIN_POSITIVE));
                let most = apart.fold(0.0, f32::max);
                assert!(most < 0.15, "{layout:?}: {name} is {history:?}, on one rank {:?}", alone.1[name]);
            }
        }
    }
}

#[test]
fn a_training_goes_on_from_its_state_to_the_bit() {
    tch::set_num_threads(1);
    let comm = || Arc::new(Single) as Arc<dyn Communicator>;
    let mut settings = with(Some(Fp8Scaling::Tensor));
    settings.algorithm.advantage_estimator = AdvantageEstimator::Ppo;
    let fresh = || {
        let of = |extra| load(&experts(), extra, &comm(), Layout::default());
        let roles = Roles { critic: Some(of(Extra::ValueHead { seed: 3 })), ..Roles::from(of(Extra::None)) };
        Trainer::new(roles, comm(), settings.clone()).unwrap()
    };
    let mut whole = fresh();
    losses(&mut whole, 2, &rollout(4, 3));
    let mut resumed = fresh();
    for buffer in whole.buffers() {
        assert!(buffer.is_saved.iter().all(|is_saved| *is_saved));
        resumed.write_buffer(&buffer.name, &whole.read_buffer(&buffer.name).unwrap()).unwrap();
    }
    resumed.resume(whole.progress()).unwrap();
    assert!(histories(&whole).len() > 6 && histories(&whole) == histories(&resumed));
    let expected = losses(&mut whole, 2, &rollout(4, 3));
    assert_eq!(losses(&mut resumed, 2, &rollout(4, 3)), expected);
    for (got, expected) in weights(&resumed).iter().zip(weights(&whole)) {
        assert!(got.equal(&expected));
    }
    assert_eq!(resumed.write_buffer("fp8/layers.0.qkv", &[1.0]).unwrap_err().exit_code(), 65);
    assert_eq!(resumed.write_buffer("fp8/layers.7.qkv", &[1.0]).unwrap_err().exit_code(), 65);
}

#[test]
fn a_reference_with_the_same_weights_is_at_no_distance() {
    tch::set_num_threads(1);
    let dense = tempfile::tempdir().unwrap();
    DENSE.write(dense.path());
    for scaling in SCALINGS {
        let mut settings = with(Some(scaling));
        settings.algorithm.kl_loss_coef = Some(0.1);
        settings.reference_is_start = true;
        settings.checks.first_step = true;
        let comm: Arc<dyn Communicator> = Arc::new(Single);
        let of = || load(dense.path(), Extra::None, &comm, Layout::default());
        let roles = Roles { reference: Some(of()), ..Roles::from(of()) };
        let mut trainer = Trainer::new(roles, comm.clone(), settings).unwrap();
        trainer.train_rollout(&rollout(4, 3)).unwrap();
    }
}

#[test]
fn widths_that_do_not_fit_are_refused_by_name() {
    let of = |scaling| {
        let settings = with(Some(scaling));
        let comm: Arc<dyn Communicator> = Arc::new(Single);
        let model = load(&experts(), Extra::None, &comm, Layout::default());
        Trainer::new(model, comm, settings).map(|_| ()).map_err(|error| error.to_string())
    };
    of(Fp8Scaling::Tensor).unwrap();
    let error = of(Fp8Scaling::Block).unwrap_err();
    assert!(error.contains("layers.0.qkv [128, 32]") && error.contains("multiples of 128"), "{error}");
}
