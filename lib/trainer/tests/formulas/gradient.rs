//! Gradients of every loss against central differences, in f64.

use slime_config::{Correction, CorrectionWeight, KlLossType, RatioLevel};
use slime_model::ops::head_log_probs::{self, Shaping};
use slime_trainer::Place;
use slime_trainer::loss::Sequences;
use slime_trainer::loss::correction::{correct, off_policy_keep};
use slime_trainer::loss::kl::{approx_kl, exact_kl};
use slime_trainer::loss::policy_loss::{Clip, cispo, gspo_log_ratio, ppo_clip};
use slime_trainer::loss::preference::{bradley_terry_loss, dpo_loss};
use slime_trainer::loss::reducer::{Weighted, coefficients};
use slime_trainer::loss::sft::sft_loss;
use slime_trainer::loss::value_loss::value_loss;
use tch::{Device, Kind, Tensor};

use crate::rollout::Draws;

/// Step of the differences; their error is about its square.
const STEP: f64 = 1e-5;
/// Numbers of the rows.
const NUM_ROWS: usize = 12;

fn draw(seed: u64, num: usize, low: f64, high: f64) -> Tensor {
    let mut draws = Draws(seed);
    let values: Vec<f64> = (0..num).map(|_| low + (high - low) * draws.unit()).collect();
    Tensor::from_slice(&values)
}

/// The largest error of the gradient of `sum(weight * f(x))`. `frozen` is f with its constants taken at x, for functions
/// that stop gradients.
fn error(x: &Tensor, f: &dyn Fn(&Tensor) -> Tensor, frozen: &dyn Fn(&Tensor) -> Tensor) -> f64 {
    let leaf = x.copy().set_requires_grad(true);
    let out = f(&leaf);
    let weight = draw(7, out.numel(), 0.5, 1.5).view(out.size().as_slice());
    (&out * &weight).sum(Kind::Double).backward();
    let grad = Vec::<f64>::try_from(leaf.grad().flatten(0, -1)).unwrap();
    let at = |i: usize, step: f64| {
        let moved = x.copy();
        let mut flat = moved.view(-1);
        let _ = flat.get(i as i64).f_add_scalar_(step).unwrap();
        let _ = &mut flat;
        (frozen(&moved) * &weight).sum(Kind::Double).double_value(&[])
    };
    let mut largest = 0.0_f64;
    for (i, grad) in grad.iter().enumerate() {
        let difference = (at(i, STEP) - at(i, -STEP)) / (2.0 * STEP);
        largest = largest.max((difference - grad).abs() / grad.abs().max(1.0));
    }
    largest
}

fn plain(x: &Tensor, f: &dyn Fn(&Tensor) -> Tensor) -> f64 {
    error(x, f, f)
}

fn sequences() -> Sequences {
    let places: Vec<Place> = [4, 1, 5, 2]
        .iter()
        .enumerate()
        .flat_map(|(sample, len)| (0..*len).map(move |token| Place { sample, token }))
        .collect();
    Sequences::new(&places, Kind::Double, Device::Cpu).unwrap()
}

/// The largest relative error of a formula's gradient; none where it has no gradient of its own: advantages, weights
/// and masks are constants of the loss.
pub fn check(name: &str) -> Option<f64> {
    let new = draw(1, NUM_ROWS, -3.0, -0.1);
    let (old, advantages) = (draw(2, NUM_ROWS, -3.0, -0.1), draw(3, NUM_ROWS, -2.0, 2.0));
    // Far enough from the kinks for a difference to stay on one side.
    let clip = Clip { low: 0.2, high: 0.28, dual: Some(3.0) };
    let sequences = sequences();
    Some(match name {
        "ppo_clip" => plain(&new, &|x| ppo_clip(&(x - &old), &advantages, clip).unwrap().loss_r),
        "gspo_loss" => plain(&new, &|x| {
            ppo_clip(&gspo_log_ratio(x, &old, &sequences).unwrap(), &advantages, clip).unwrap().loss_r
        }),
        "cispo_loss" => {
            let weight = cispo(&new, &old, &advantages, clip).unwrap().loss_r / &new;
            error(&new, &|x| cispo(x, &old, &advantages, clip).unwrap().loss_r, &|x| x * &weight)
        }
        "k1" => plain(&new, &|x| approx_kl(x, &old, KlLossType::K1, None).unwrap()),
        "k2" => plain(&new, &|x| approx_kl(x, &old, KlLossType::K2, None).unwrap()),
        "k3" => plain(&new, &|x| approx_kl(x, &old, KlLossType::K3, None).unwrap()),
        "low_var_kl" => plain(&new, &|x| approx_kl(x, &old, KlLossType::LowVarKl, None).unwrap()),
        "unbiased_kl" => plain(&new, &|x| {
            let ratio = (x - &advantages).exp();
            approx_kl(x, &old, KlLossType::K3, Some(&ratio)).unwrap()
        }),
        "full_kl" => {
            let (logits, reference) =
                (draw(4, 15, -2.0, 2.0).view([3, 5]), draw(5, 15, -2.0, 2.0).view([3, 5]));
            plain(&logits, &|x| exact_kl(x, &reference).unwrap())
        }
        "entropy" => {
            let (hidden, weight) = (draw(4, 12, -2.0, 2.0).view([4, 3]), draw(5, 21, -2.0, 2.0).view([7, 3]));
            let targets = Tensor::from_slice(&[0i64, 3, 6, 2]);
            let head = |x: &Tensor, w: &Tensor| {
                let (log_probs, entropy) = head_log_probs::train(x, w, &targets, &Shaping::at(0.7)).unwrap();
                Tensor::cat(&[log_probs, entropy], 0)
            };
            plain(&hidden, &|x| head(x, &weight)).max(plain(&weight, &|w| head(&hidden, w)))
        }
        "value_loss" => {
            let returns = draw(6, NUM_ROWS, -2.0, 2.0);
            plain(&new, &|x| value_loss(x, &old, &returns, 0.5).unwrap().loss_r)
        }
        "sft" => plain(&new, &|x| sft_loss(x).unwrap()),
        "dpo" => plain(&new, &|x| dpo_loss(x, &old, 0.7, 0.1).unwrap().loss_p)
            .max(plain(&old, &|x| dpo_loss(&new, x, 0.7, 0.1).unwrap().loss_p)),
        "reward_model" => plain(&new, &|x| bradley_terry_loss(x, &old, &advantages).unwrap().loss_p)
            .max(plain(&old, &|x| bradley_terry_loss(&new, x, &advantages).unwrap().loss_p)),
        "sample_mean" | "token_mean" | "constant_length" | "episode_mean" => reducer(name, &new),
        "truncated_importance"
        | "clipped_importance"
        | "icepop"
        | "decoupled_ppo"
        | "token_rejection"
        | "sequence_rejection"
        | "veto"
        | "off_policy_sequence_masking" => corrected(name, &new, &old, &advantages, &sequences),
        _ => return None,
    })
}

/// A corrected loss: the weight is a constant, so the gradient is the weight times that of the loss.
fn corrected(name: &str, new: &Tensor, old: &Tensor, advantages: &Tensor, sequences: &Sequences) -> f64 {
    let rollout = draw(8, NUM_ROWS, -3.0, -0.1);
    let settings = crate::rollout::settings(name).algorithm.correction;
    let factor = |x: &Tensor| {
        if name == "off_policy_sequence_masking" {
            return off_policy_keep(x, old, advantages, 0.1, sequences).unwrap();
        }
        let got = correct(x, &rollout, &settings, 1.0, sequences).unwrap();
        if settings.weight == CorrectionWeight::None { got.keep_r } else { got.weight_r * got.keep_r }
    };
    let clip = Clip { low: 0.2, high: 0.28, dual: None };
    let loss = |x: &Tensor| ppo_clip(&(x - old), advantages, clip).unwrap().loss_r;
    let constant = factor(new);
    error(new, &|x| loss(x) * factor(x), &|x| loss(x) * &constant)
}

fn reducer(name: &str, losses: &Tensor) -> f64 {
    let samples: Vec<Weighted> = [4usize, 1, 5, 2]
        .iter()
        .enumerate()
        .map(|(i, num)| Weighted {
            num_trained: *num,
            weight: 1.0 - 0.2 * i as f32,
            episode: (0, 0, i as u64 / 2),
        })
        .collect();
    let reducer = crate::rollout::settings(name).algorithm.loss_reducer();
    let of_row: Vec<f64> = samples
        .iter()
        .zip(coefficients(&samples, reducer, 16.0))
        .flat_map(|(sample, coefficient)| vec![coefficient; sample.num_trained])
        .collect();
    let of_row = Tensor::from_slice(&of_row);
    plain(losses, &|x| (x * x * &of_row).sum(Kind::Double).unsqueeze(0))
}

#[test]
fn weights_and_masks_carry_no_gradient() {
    let new = draw(1, NUM_ROWS, -3.0, -0.1).set_requires_grad(true);
    let rollout = draw(2, NUM_ROWS, -3.0, -0.1);
    let correction = Correction {
        weight: CorrectionWeight::Clip,
        high: Some(1.5),
        reject: Some(RatioLevel::Geometric),
        reject_high: Some(1.5),
        veto: Some(0.1),
        ..Correction::default()
    };
    let got = correct(&new, &rollout, &correction, 1.0, &sequences()).unwrap();
    for tensor in [got.ratio_r, got.weight_r, got.bounded_r, got.keep_r] {
        assert!(!tensor.requires_grad());
    }
}
