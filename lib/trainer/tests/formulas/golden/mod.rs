//! Values of implementations that are not ours: the public framework slime, verl and TRL, and torch.

mod advantages;
mod corrections;
mod losses;

use std::collections::BTreeMap;

use serde_json::Value;
use slime_config::LossReducer;
use slime_trainer::Place;
use slime_trainer::loss::Sequences;
use slime_trainer::loss::reducer::{Weighted, coefficients};
use tch::{Device, Kind, Tensor};

/// How many cases of which implementation a formula was compared with.
pub type Counts = BTreeMap<&'static str, usize>;

const FILES: [&str; 2] =
    [include_str!("../../../golden/slime_algorithms.json"), include_str!("../../../golden/formulas.json")];

/// The cases of one function in both files, with who computed them.
fn cases(function: &str) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    for (file, text) in FILES.iter().enumerate() {
        let parsed: Value = serde_json::from_str(text).unwrap();
        for case in parsed["cases"].as_array().unwrap().iter().filter(|case| case["function"] == function) {
            let source = case["source"].as_str().unwrap_or_default();
            let whose = match file {
                0 => "slime",
                _ if source.starts_with("trl") => "TRL",
                _ if source.starts_with("torch") => "torch",
                _ => "verl",
            };
            found.push((whose, case.clone()));
        }
    }
    assert!(!found.is_empty(), "{function}");
    found
}

pub fn floats(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{what}: expected {expected:?}, got {got:?}");
    }
}

fn list(x: &Tensor) -> Vec<f64> {
    Vec::try_from(x.to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|x| *x as f32).collect()
}

/// The trained tokens of ragged lists.
struct Masked {
    masks: Vec<Vec<f64>>,
    places: Vec<Place>,
    sequences: Sequences,
}

impl Masked {
    fn new(mask: &Value) -> Self {
        let masks: Vec<Vec<f64>> = mask.as_array().unwrap().iter().map(floats).collect();
        let mut places = Vec::new();
        for (sample, mask) in masks.iter().enumerate() {
            places.extend((0..mask.len()).filter(|t| mask[*t] != 0.0).map(|token| Place { sample, token }));
        }
        let sequences = Sequences::new(&places, Kind::Double, Device::Cpu).unwrap();
        Self { masks, places, sequences }
    }

    /// What stands at the trained tokens of ragged lists, or of one number for each sample.
    fn rows(&self, lists: &Value) -> Vec<f64> {
        let at = |place: &Place| match &lists[place.sample] {
            Value::Array(list) => list[place.token].as_f64().unwrap(),
            number => number.as_f64().unwrap(),
        };
        self.places.iter().map(at).collect()
    }

    fn tensor(&self, lists: &Value) -> Tensor {
        Tensor::from_slice(&self.rows(lists))
    }

    /// The same with gradient.
    fn leaf(&self, lists: &Value) -> Tensor {
        self.tensor(lists).set_requires_grad(true)
    }

    /// The trained tokens of sample `i`: their places, and what stands there.
    fn sample(&self, i: usize, lists: &Value) -> (Vec<usize>, Vec<f32>) {
        let rows = self.rows(lists);
        let mine = |(place, value): (&Place, f64)| (place.sample == i).then_some((place.token, value as f32));
        self.places.iter().zip(rows).filter_map(mine).unzip()
    }

    /// The loss of rows under verl's name of a reducer; verl leaves samples without a token out of its mean.
    fn reduce(&self, loss_r: &Tensor, params: &Value) -> Tensor {
        let number = |key: &str| params[key].as_f64();
        let mode = params["loss_agg_mode"].as_str().unwrap();
        let samples: Vec<Weighted> = self
            .masks
            .iter()
            .enumerate()
            .map(|(i, mask)| Weighted {
                num_trained: mask.iter().filter(|m| **m != 0.0).count(),
                weight: 1.0,
                episode: (0, 0, i as u64),
            })
            .filter(|sample| sample.num_trained > 0)
            .collect();
        let reducer = match mode {
            "token-mean" => LossReducer::TokenMean,
            "seq-mean-token-mean" => LossReducer::SampleMean,
            "seq-mean-token-sum" | "seq-mean-token-sum-norm" => LossReducer::ConstantLength,
            other => panic!("{other}"),
        };
        let scale = number("loss_scale_factor").or(number("padded_length")).unwrap_or(1.0);
        let loss_len = if mode == "seq-mean-token-sum" { 1.0 } else { scale };
        let of_sample = coefficients(&samples, reducer, loss_len);
        let (mut of_row, mut at, mut last) = (Vec::new(), 0, None);
        for place in &self.places {
            if last.is_some_and(|last| last != place.sample) {
                at += 1;
            }
            last = Some(place.sample);
            of_row.push(of_sample[at]);
        }
        (loss_r * Tensor::from_slice(&of_row)).sum(Kind::Double)
    }

    /// Compares a loss and its gradient.
    fn check(&self, loss: &Tensor, leaf: &Tensor, output: &Value, grad: &str, what: &str) {
        close(&[loss.double_value(&[])], &[output["loss"].as_f64().unwrap()], what);
        loss.backward();
        close(&list(&leaf.grad()), &self.rows(&output[grad]), what);
    }
}

/// Compares a formula with every case there is; how many of whom.
pub fn check(name: &str) -> Counts {
    let mut counts = Counts::new();
    let mut count = |whose: &'static str| *counts.entry(whose).or_default() += 1;
    match name {
        "grpo" | "gspo" | "cispo" | "dr_grpo" => advantages::group_relative(name != "dr_grpo", &mut count),
        "rloo" => advantages::leave_one_out(&mut count),
        "reinforce_plus_plus" => advantages::discounted(&mut count),
        "reinforce_plus_plus_baseline" => advantages::baseline(&mut count),
        "ppo" => advantages::generalised(&mut count),
        "distillation" => advantages::teacher(&mut count),
        "whitening" => advantages::whitened(&mut count),
        "ppo_clip" => losses::clipped(&mut count),
        "gspo_loss" => losses::sequence_clipped(&mut count),
        "cispo_loss" => losses::weighted(&mut count),
        "k1" | "k2" | "k3" | "low_var_kl" => losses::estimators(name, &mut count),
        "unbiased_kl" => losses::unbiased(&mut count),
        "full_kl" => losses::whole_kl(&mut count),
        "entropy" => losses::entropy(&mut count),
        "truncated_importance" | "icepop" | "clipped_importance" => corrections::weights(name, &mut count),
        "decoupled_ppo" => corrections::decoupled(&mut count),
        "token_rejection" | "sequence_rejection" | "veto" => corrections::rejections(name, &mut count),
        "off_policy_sequence_masking" => corrections::sequence_masks(&mut count),
        "value_loss" => losses::values(&mut count),
        "sft" => losses::cross_entropy(&mut count),
        "dpo" => losses::preferences(&mut count),
        "reward_model" => losses::scores(&mut count),
        "sample_mean" | "token_mean" | "constant_length" | "episode_mean" => {
            losses::reducers(name, &mut count);
        }
        other => panic!("no golden values for {other}"),
    }
    assert!(!counts.is_empty(), "{name}");
    counts
}
