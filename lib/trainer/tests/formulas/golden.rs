//! Values of implementations that are not ours: the public framework slime, verl and TRL, and torch.

use std::collections::BTreeMap;

use serde_json::Value;
use slime_config::{Correction, CorrectionWeight, KlLossType, LossReducer, RatioLevel};
use slime_model::ops::head_log_probs::{self, Shaping};
use slime_trainer::Place;
use slime_trainer::advantage::{
    distillation, gae, grpo, reinforce_plus_plus, reinforce_plus_plus_baseline, rloo, whiten,
};
use slime_trainer::loss::Sequences;
use slime_trainer::loss::correction::{correct, off_policy_keep};
use slime_trainer::loss::kl::{approx_kl, exact_kl};
use slime_trainer::loss::policy_loss::{Clip, PolicyLoss, cispo, gspo_log_ratio, ppo_clip};
use slime_trainer::loss::preference::{bradley_terry_loss, dpo_loss};
use slime_trainer::loss::reducer::{Weighted, coefficients};
use slime_trainer::loss::sft::sft_loss;
use slime_trainer::loss::value_loss::value_loss;
use tch::{Device, Kind, Tensor};

/// How many cases of which implementation a formula was compared with.
pub type Counts = BTreeMap<&'static str, usize>;

const FILES: [&str; 2] =
    [include_str!("../../golden/slime_algorithms.json"), include_str!("../../golden/formulas.json")];

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

/// The groups of a verl case that has more than one sample in each: members, by place.
fn groups(input: &Value) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, group) in input["groups"].as_array().unwrap().iter().enumerate() {
        groups.entry(group.as_u64().unwrap()).or_default().push(i);
    }
    groups.into_values().filter(|members| members.len() > 1).collect()
}

/// Compares what a group says with verl's advantages, which stand on every trained token.
fn check_groups(case: &Value, of_group: impl Fn(&[f32]) -> Vec<f32>) {
    let masked = Masked::new(&case["input"]["loss_mask"]);
    let rewards = narrow(&floats(&case["input"]["rewards"]));
    for members in groups(&case["input"]) {
        let got = of_group(&members.iter().map(|i| rewards[*i]).collect::<Vec<_>>());
        for (i, advantage) in members.iter().zip(got) {
            let (_, expected) = masked.sample(*i, &case["output"]["advantages"]);
            close(&vec![f64::from(advantage); expected.len()], &wide(&expected), "advantages of a group");
        }
    }
}

/// Compares a formula with every case there is; how many of whom.
pub fn check(name: &str) -> Counts {
    let mut counts = Counts::new();
    let mut count = |whose: &'static str| *counts.entry(whose).or_default() += 1;
    match name {
        "grpo" | "gspo" | "cispo" | "dr_grpo" => group_relative(name != "dr_grpo", &mut count),
        "rloo" => leave_one_out(&mut count),
        "reinforce_plus_plus" => discounted(&mut count),
        "reinforce_plus_plus_baseline" => baseline(&mut count),
        "ppo" => generalised(&mut count),
        "distillation" => teacher(&mut count),
        "whitening" => whitened(&mut count),
        "ppo_clip" => clipped(&mut count),
        "gspo_loss" => sequence_clipped(&mut count),
        "cispo_loss" => weighted(&mut count),
        "k1" | "k2" | "k3" | "low_var_kl" => estimators(name, &mut count),
        "unbiased_kl" => unbiased(&mut count),
        "full_kl" => whole_kl(&mut count),
        "entropy" => entropy(&mut count),
        "truncated_importance" | "icepop" | "clipped_importance" => weights(name, &mut count),
        "decoupled_ppo" => decoupled(&mut count),
        "token_rejection" | "sequence_rejection" | "veto" => rejections(name, &mut count),
        "off_policy_sequence_masking" => sequence_masks(&mut count),
        "value_loss" => values(&mut count),
        "sft" => cross_entropy(&mut count),
        "dpo" => preferences(&mut count),
        "reward_model" => scores(&mut count),
        "sample_mean" | "token_mean" | "constant_length" | "episode_mean" => reducers(name, &mut count),
        other => panic!("no golden values for {other}"),
    }
    assert!(!counts.is_empty(), "{name}");
    counts
}

fn group_relative(std: bool, count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("group_normalized_rewards") {
        let key = if std { "std_normalized" } else { "centered" };
        for (i, group) in case["input"]["rewards"].as_array().unwrap().iter().enumerate() {
            let got = grpo(&narrow(&floats(group)), std);
            close(&wide(&got), &floats(&case["output"][key][i]), key);
        }
        count(whose);
    }
    for (whose, case) in cases("grpo_advantage") {
        if case["params"]["norm_adv_by_std"] == std {
            check_groups(&case, |rewards| grpo(rewards, std));
            count(whose);
        }
    }
}

fn leave_one_out(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("rloo_advantage") {
        check_groups(&case, rloo);
        count(whose);
    }
    for (whose, case) in cases("rloo_advantage_trl") {
        let params = &case["params"];
        if params["beta"] == 0 && params["normalize_advantages"] == false {
            let rewards = narrow(&floats(&case["input"]["rewards"]));
            let size = params["num_generations"].as_u64().unwrap() as usize;
            let got: Vec<f32> = rewards.chunks(size).flat_map(rloo).collect();
            close(&wide(&got), &floats(&case["output"]["advantages"]), "leave one out");
            count(whose);
        }
    }
}

fn discounted(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("reinforce_plus_plus_returns") {
        let masked = Masked::new(&case["input"]["loss_mask"]);
        let number = |key: &str| case["params"][key].as_f64().unwrap();
        for (i, reward) in floats(&case["input"]["rewards"]).into_iter().enumerate() {
            let (positions, kl) = masked.sample(i, &case["input"]["kl"]);
            let got =
                reinforce_plus_plus(reward as f32, &positions, &kl, &[], number("kl_coef"), number("gamma"));
            close(&wide(&got), &wide(&masked.sample(i, &case["output"]).1), "returns");
        }
        count(whose);
    }
    for (whose, case) in cases("reinforce_plus_plus_advantage") {
        // verl does not discount over masked tokens; without them, or without discount, it is the same.
        let masked = Masked::new(&case["input"]["loss_mask"]);
        let gamma = case["params"]["gamma"].as_f64().unwrap();
        for i in 0..masked.masks.len() {
            let (_, rewards) = masked.sample(i, &case["input"]["token_rewards"]);
            let unbroken: Vec<usize> = (0..rewards.len()).collect();
            let got = reinforce_plus_plus(0.0, &unbroken, &[], &rewards, 0.0, gamma);
            close(&wide(&got), &wide(&masked.sample(i, &case["output"]["returns"]).1), "returns");
        }
        count(whose);
    }
}

fn baseline(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("reinforce_plus_plus_baseline_advantages") {
        let kl_coef = case["params"]["kl_coef"].as_f64().unwrap();
        for (i, centered) in floats(&case["input"]["rewards"]).into_iter().enumerate() {
            let kl = narrow(&floats(&case["input"]["kl"][i]));
            let got = reinforce_plus_plus_baseline(centered as f32, kl.len(), &kl, kl_coef);
            close(&wide(&got), &floats(&case["output"][i]), "advantages");
        }
        count(whose);
    }
    for (whose, case) in cases("reinforce_plus_plus_baseline_advantage") {
        check_groups(&case, |rewards| {
            let of = |centered: f32| reinforce_plus_plus_baseline(centered, 1, &[], 0.0)[0];
            grpo(rewards, false).into_iter().map(of).collect()
        });
        count(whose);
    }
}

fn generalised(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("gae") {
        let number = |keys: [&str; 2]| keys.iter().find_map(|key| case["params"][*key].as_f64()).unwrap();
        let (gamma, lambda) = (number(["gamma", "gamma"]), number(["lambda", "lambda_"]));
        let input = &case["input"];
        let all: Value = input["values"]
            .as_array()
            .unwrap()
            .iter()
            .map(|values| vec![1.0; values.as_array().unwrap().len()])
            .collect::<Vec<_>>()
            .into();
        let masked = Masked::new(input.get("loss_mask").unwrap_or(&all));
        for i in 0..masked.masks.len() {
            let list = |lists: &Value| masked.sample(i, lists).1;
            let (advantages, returns) =
                gae(&list(&input["token_rewards"]), &list(&input["values"]), gamma, lambda);
            close(&wide(&advantages), &wide(&list(&case["output"]["advantages"])), "advantages");
            close(&wide(&returns), &wide(&list(&case["output"]["returns"])), "returns");
        }
        count(whose);
    }
}

fn teacher(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("on_policy_distillation_loss") {
        let (params, input) = (&case["params"], &case["input"]);
        if params["use_policy_gradient"] != true || !params["loss_max_clamp"].is_null() {
            continue;
        }
        let masked = Masked::new(&input["loss_mask"]);
        let new = masked.leaf(&input["log_probs"]);
        // verl compares the teacher with the log-probs of the running step.
        let own = narrow(&masked.rows(&input["log_probs"]));
        let advantages = distillation(&own, &narrow(&masked.rows(&input["teacher_log_probs"])), 1.0);
        let clip = Clip { low: 0.2, high: 0.2, dual: Some(3.0) };
        let advantages = Tensor::from_slice(&wide(&advantages));
        let loss =
            ppo_clip(&(&new - masked.tensor(&input["old_log_probs"])), &advantages, clip).unwrap().loss_r;
        masked.check(&masked.reduce(&loss, params), &new, &case["output"], "grad_log_probs", "distillation");
        count(whose);
    }
}

fn whitened(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("masked_whiten") {
        if case["params"]["shift_mean"] == true {
            let masked = Masked::new(&case["input"]["loss_mask"]);
            let mut got = narrow(&masked.rows(&case["input"]["values"]));
            whiten(&mut got, &slime_comm::Single).unwrap();
            close(&wide(&got), &masked.rows(&case["output"]), "whitened");
            count(whose);
        }
    }
}

fn clip_of(params: &Value) -> Clip {
    let number = |keys: [&str; 2]| keys.iter().find_map(|key| params[*key].as_f64());
    let low = number(["eps_clip", "clip_low"]).unwrap();
    Clip {
        low,
        high: number(["eps_clip_high", "clip_high"]).unwrap(),
        dual: number(["eps_clip_c", "clip_ratio_c"]),
    }
}

fn clipped(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("policy_loss") {
        // slime takes old - new.
        let log_ratio = -Tensor::from_slice(&floats(&case["input"]["ppo_kl"]));
        let advantages = Tensor::from_slice(&floats(&case["input"]["advantages"]));
        let PolicyLoss { loss_r, clipped_r } =
            ppo_clip(&log_ratio, &advantages, clip_of(&case["params"])).unwrap();
        close(&list(&loss_r), &floats(&case["output"]["loss"]), "loss");
        close(&list(&clipped_r), &floats(&case["output"]["clipped"]), "clipped");
        count(whose);
    }
    for (whose, case) in cases("ppo_policy_loss") {
        // Denominators of a part of a larger batch are told to verl; here they follow from the batch.
        if !case["params"]["dp_size"].is_null() {
            continue;
        }
        check_policy_loss(&case, |new, old, advantages, _| {
            let mut result = ppo_clip(&(new - old), advantages, clip_of(&case["params"])).unwrap();
            if !case["input"]["is_weights"].is_null() {
                let masked = Masked::new(&case["input"]["loss_mask"]);
                result.loss_r *= masked.tensor(&case["input"]["is_weights"]);
            }
            result
        });
        count(whose);
    }
}

fn check_policy_loss(case: &Value, of: impl Fn(&Tensor, &Tensor, &Tensor, &Sequences) -> PolicyLoss) {
    let input = &case["input"];
    let masked = Masked::new(&input["loss_mask"]);
    let new = masked.leaf(&input["log_probs"]);
    let (old, advantages) = (masked.tensor(&input["old_log_probs"]), masked.tensor(&input["advantages"]));
    let result = of(&new, &old, &advantages, &masked.sequences);
    let loss = masked.reduce(&result.loss_r, &case["params"]);
    masked.check(&loss, &new, &case["output"], "grad_log_probs", "policy loss");
}

fn sequence_clipped(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("gspo_kl") {
        let input = &case["input"];
        let masked = Masked::new(&input["loss_mask"]);
        let (new, old) = (masked.tensor(&input["log_probs"]), masked.tensor(&input["old_log_probs"]));
        let got = gspo_log_ratio(&new, &old, &masked.sequences).unwrap();
        // slime's list has masked tokens too, and is old - new.
        let mut all = floats(&case["output"]).into_iter();
        let ragged: Vec<Vec<f64>> =
            masked.masks.iter().map(|mask| all.by_ref().take(mask.len()).map(|x| -x).collect()).collect();
        close(&list(&got), &masked.rows(&ragged.into()), "log ratio");
        count(whose);
    }
    for (whose, case) in cases("gspo_policy_loss") {
        // verl's gradient is that of each token's own log-prob: the same where advantages and coefficients are those of
        // the sequence.
        if case["params"]["loss_agg_mode"] == "seq-mean-token-mean" {
            check_policy_loss(&case, |new, old, advantages, sequences| {
                let log_ratio = gspo_log_ratio(new, old, sequences).unwrap();
                ppo_clip(&log_ratio, advantages, clip_of(&case["params"])).unwrap()
            });
            count(whose);
        }
    }
}

fn weighted(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("cispo_loss") {
        let tensor = |name: &str| Tensor::from_slice(&floats(&case["input"][name]));
        let new = tensor("log_probs").set_requires_grad(true);
        let result =
            cispo(&new, &tensor("old_log_probs"), &tensor("advantages"), clip_of(&case["params"])).unwrap();
        result.loss_r.sum(Kind::Double).backward();
        close(&list(&result.loss_r), &floats(&case["output"]["loss"]), "loss");
        close(&list(&new.grad()), &floats(&case["output"]["grad_log_probs_of_sum"]), "gradient");
        count(whose);
    }
    for (whose, case) in cases("cispo_policy_loss") {
        check_policy_loss(&case, |new, old, advantages, _| {
            cispo(new, old, advantages, clip_of(&case["params"])).unwrap()
        });
        count(whose);
    }
}

fn estimators(name: &str, count: &mut dyn FnMut(&'static str)) {
    let kind = match name {
        "k1" => KlLossType::K1,
        "k2" => KlLossType::K2,
        "k3" => KlLossType::K3,
        _ => KlLossType::LowVarKl,
    };
    for (whose, case) in cases("approx_kl") {
        if case["params"]["kl_loss_type"] == name {
            let tensor = |name: &str| Tensor::from_slice(&floats(&case["input"][name]));
            let kl = approx_kl(&tensor("log_probs"), &tensor("base_log_probs"), kind, None).unwrap();
            close(&list(&kl), &floats(&case["output"]), name);
            count(whose);
        }
    }
    for (whose, case) in cases("kl_penalty") {
        if case["params"]["kind"] == name {
            let tensor = |name: &str| Tensor::from_slice(&floats(&case["input"][name]));
            let new = tensor("log_probs").set_requires_grad(true);
            let kl = approx_kl(&new, &tensor("ref_log_probs"), kind, None).unwrap();
            kl.sum(Kind::Double).backward();
            // verl bounds its k3 as slime bounds low_var_kl alone.
            let expected = floats(&case["output"]["kl"]);
            let inside: Vec<usize> =
                (0..expected.len()).filter(|i| name != "k3" || expected[*i].abs() < 10.0).collect();
            let pick = |values: Vec<f64>| -> Vec<f64> { inside.iter().map(|i| values[*i]).collect() };
            close(&pick(list(&kl)), &pick(expected.clone()), name);
            close(&pick(list(&new.grad())), &pick(floats(&case["output"]["grad_log_probs"])), name);
            count(whose);
        }
    }
}

fn unbiased(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("approx_kl_unbiased") {
        let kind = match case["params"]["kl_loss_type"].as_str().unwrap() {
            "k1" => KlLossType::K1,
            "k2" => KlLossType::K2,
            "k3" => KlLossType::K3,
            _ => KlLossType::LowVarKl,
        };
        let tensor = |name: &str| Tensor::from_slice(&floats(&case["input"][name]));
        let ratio = tensor("importance_ratio");
        let kl = approx_kl(&tensor("log_probs"), &tensor("base_log_probs"), kind, Some(&ratio)).unwrap();
        close(&list(&kl), &floats(&case["output"]), "unbiased");
        count(whose);
    }
}

/// Ragged matrices `[sample][token][vocabulary]` at the trained tokens.
fn matrices(masked: &Masked, lists: &Value) -> Tensor {
    let rows: Vec<Tensor> = masked
        .places
        .iter()
        .map(|place| Tensor::from_slice(&floats(&lists[place.sample][place.token])))
        .collect();
    Tensor::stack(&rows, 0)
}

fn whole_kl(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("full_kl") {
        let masked = Masked::new(&case["input"]["loss_mask"]);
        let logits = matrices(&masked, &case["input"]["logits"]).set_requires_grad(true);
        let kl = exact_kl(&logits, &matrices(&masked, &case["input"]["ref_logits"])).unwrap();
        kl.sum(Kind::Double).backward();
        close(&list(&kl), &masked.rows(&case["output"]["kl"]), "kl");
        close(&list(&logits.grad()), &list(&matrices(&masked, &case["output"]["grad_logits"])), "gradient");
        count(whose);
    }
}

/// Log-probs and entropy of logits: the head over an identity.
fn head(logits: &Tensor, targets: &Tensor) -> (Tensor, Tensor) {
    let identity = Tensor::eye(logits.size()[1], (Kind::Double, Device::Cpu));
    head_log_probs::train(logits, &identity, targets, &Shaping::at(1.0)).unwrap()
}

fn logits_and_targets(case: &Value) -> (Tensor, Tensor) {
    let rows: Vec<Tensor> = case["input"]["logits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| Tensor::from_slice(&floats(row)))
        .collect();
    let targets: Vec<i64> =
        case["input"]["targets"].as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
    (Tensor::stack(&rows, 0), Tensor::from_slice(&targets))
}

fn entropy(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("log_probs_and_entropy") {
        let (logits, targets) = logits_and_targets(&case);
        let logits = logits.set_requires_grad(true);
        let (log_probs, entropy) = head(&logits, &targets);
        close(&list(&entropy), &floats(&case["output"]["entropy"]), "entropy");
        close(&list(&log_probs), &floats(&case["output"]["log_probs"]), "log-probs");
        if let Some(expected) = case["output"]["grad_logits_of_entropy"].as_array() {
            entropy.sum(Kind::Double).backward();
            let expected: Vec<f64> = expected.iter().flat_map(floats).collect();
            close(&list(&logits.grad()), &expected, "gradient");
        }
        count(whose);
    }
}

fn cross_entropy(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("log_probs_and_entropy") {
        let (logits, targets) = logits_and_targets(&case);
        let logits = logits.set_requires_grad(true);
        let loss = sft_loss(&head(&logits, &targets).0).unwrap();
        let expected: Vec<f64> = floats(&case["output"]["log_probs"]).iter().map(|x| -x).collect();
        close(&list(&loss), &expected, "loss");
        if let Some(expected) = case["output"]["grad_logits_of_log_probs"].as_array() {
            loss.sum(Kind::Double).backward();
            let expected: Vec<f64> = expected.iter().flat_map(floats).map(|x| -x).collect();
            close(&list(&logits.grad()), &expected, "gradient");
        }
        count(whose);
    }
}

fn weights(name: &str, count: &mut dyn FnMut(&'static str)) {
    let of_slime = match name {
        "clipped_importance" => Some(("vanilla_tis", CorrectionWeight::Clip)),
        "icepop" => Some(("icepop", CorrectionWeight::Mask)),
        _ => None,
    };
    if let Some((function, weight)) = of_slime {
        for (whose, case) in cases(function) {
            let (params, input, output) = (&case["params"], &case["input"], &case["output"]);
            let ones = |lists: &Value| -> Value {
                let of = |list: &Value| vec![1.0; list.as_array().unwrap().len()];
                lists.as_array().unwrap().iter().map(of).collect::<Vec<_>>().into()
            };
            let masked = Masked::new(&ones(&input["train_log_probs"]));
            let (low, high) = (params["tis_clip_low"].as_f64(), params["tis_clip"].as_f64());
            let correction = Correction { weight, low, high, ..Correction::default() };
            let (train, rollout) =
                (masked.tensor(&input["train_log_probs"]), masked.tensor(&input["rollout_log_probs"]));
            let got = correct(&train, &rollout, &correction, 1.0, &masked.sequences).unwrap();
            let loss = Tensor::from_slice(&floats(&input["pg_loss"]));
            close(&list(&(loss * &got.weight_r)), &floats(&output["pg_loss"]), "loss");
            close(&list(&got.ratio_r), &floats(&output["tis"]), "ratio");
            close(&list(&got.bounded_r), &floats(&output["tis_clipfrac"]), "bounded");
            count(whose);
        }
    }
    if name == "clipped_importance" {
        return;
    }
    for (whose, case) in cases("rollout_is_weights") {
        let params = &case["params"];
        let (weight, low, high) = bounds(&params["threshold"]);
        if (weight == CorrectionWeight::Mask) != (name == "icepop") {
            continue;
        }
        let masked = Masked::new(&case["input"]["loss_mask"]);
        let (old, rollout) = (
            masked.tensor(&case["input"]["old_log_probs"]),
            masked.tensor(&case["input"]["rollout_log_probs"]),
        );
        let level = level_of(&params["level"]).unwrap();
        let correction = Correction { weight, low, high, level, ..Correction::default() };
        let plain = correct(&old, &rollout, &correction, 1.0, &masked.sequences).unwrap().weight_r;
        let mean = match level {
            _ if params["batch_normalize"] == false => 1.0,
            RatioLevel::Token => plain.mean(Kind::Double).double_value(&[]),
            _ => masked.sequences.mean(&plain).unwrap().mean(Kind::Double).double_value(&[]),
        };
        let got = correct(&old, &rollout, &correction, mean, &masked.sequences).unwrap();
        close(&list(&got.weight_r), &masked.rows(&case["output"]["weights"]), name);
        count(whose);
    }
}

/// verl's threshold: a number truncates, `low_high` masks.
fn bounds(threshold: &Value) -> (CorrectionWeight, Option<f64>, Option<f64>) {
    match threshold.as_str().and_then(|text| text.split_once('_')) {
        Some((low, high)) => (CorrectionWeight::Mask, low.parse().ok(), high.parse().ok()),
        None => (CorrectionWeight::Truncate, None, threshold.as_f64()),
    }
}

fn level_of(word: &Value) -> Option<RatioLevel> {
    match word.as_str()? {
        "token" => Some(RatioLevel::Token),
        "sequence" => Some(RatioLevel::Sequence),
        "geometric" => Some(RatioLevel::Geometric),
        other => panic!("{other}"),
    }
}

fn decoupled(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("decoupled_ppo_loss") {
        let (params, input) = (&case["params"], &case["input"]);
        if !params["rejection"].is_null() {
            // verl divides by what was kept.
            continue;
        }
        let masked = Masked::new(&input["loss_mask"]);
        let (weight, low, high) = bounds(&params["threshold"]);
        let level = level_of(&params["level"]).unwrap();
        let correction = Correction { weight, low, high, level, ..Correction::default() };
        let old = masked.tensor(&input["old_log_probs"]);
        let rollout = masked.tensor(&input["rollout_log_probs"]);
        let corrected = correct(&old, &rollout, &correction, 1.0, &masked.sequences).unwrap();
        let new = masked.leaf(&input["log_probs"]);
        let loss = ppo_clip(&(&new - &old), &masked.tensor(&input["advantages"]), clip_of(params)).unwrap();
        let loss = masked.reduce(&(loss.loss_r * corrected.weight_r), params);
        masked.check(&loss, &new, &case["output"], "grad_log_probs", "decoupled");
        count(whose);
    }
}

fn rejections(name: &str, count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("rollout_rejection_mask_veto") {
        let params = &case["params"];
        let (reject, veto) = (level_of(&params["level"]), params["veto_threshold"].as_f64());
        let is_it = match name {
            "veto" => veto.is_some(),
            "token_rejection" => reject == Some(RatioLevel::Token),
            _ => matches!(reject, Some(RatioLevel::Sequence | RatioLevel::Geometric)),
        };
        if !is_it {
            continue;
        }
        let masked = Masked::new(&case["input"]["loss_mask"]);
        let (old, rollout) = (
            masked.tensor(&case["input"]["old_log_probs"]),
            masked.tensor(&case["input"]["rollout_log_probs"]),
        );
        let correction = Correction {
            reject,
            reject_low: params["threshold_low"].as_f64(),
            reject_high: params["threshold_high"].as_f64(),
            veto,
            ..Correction::default()
        };
        let got = correct(&old, &rollout, &correction, 1.0, &masked.sequences).unwrap();
        close(&list(&got.keep_r), &masked.rows(&case["output"]["mask"]), name);
        count(whose);
    }
}

fn sequence_masks(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("opsm_mask") {
        let input = &case["input"];
        let masked = Masked::new(&input["loss_mask"]);
        let tensor = |name: &str| masked.tensor(&input[name]);
        let delta = case["params"]["opsm_delta"].as_f64().unwrap();
        let got = off_policy_keep(
            &tensor("log_probs"),
            &tensor("old_log_probs"),
            &tensor("advantages"),
            delta,
            &masked.sequences,
        );
        let mut all = floats(&case["output"]["mask"]).into_iter();
        let ragged: Vec<Vec<f64>> =
            masked.masks.iter().map(|mask| all.by_ref().take(mask.len()).collect()).collect();
        close(&list(&got.unwrap()), &masked.rows(&ragged.into()), "mask");
        count(whose);
    }
    for (whose, case) in cases("off_policy_sequence_mask") {
        let input = &case["input"];
        let masked = Masked::new(&input["loss_mask"]);
        let tensor = |name: &str| masked.tensor(&input[name]);
        let delta = case["params"]["threshold"].as_f64().unwrap();
        let got = off_policy_keep(
            &tensor("log_probs"),
            &tensor("rollout_log_probs"),
            &tensor("advantages"),
            delta,
            &masked.sequences,
        );
        close(&list(&got.unwrap()), &masked.rows(&case["output"]), "mask");
        count(whose);
    }
}

fn values(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("value_loss") {
        let input = &case["input"];
        let masked = Masked::new(&input["loss_mask"]);
        let values = masked.leaf(&input["values"]);
        let clip = case["params"]["cliprange_value"].as_f64().unwrap();
        let loss = value_loss(
            &values,
            &masked.tensor(&input["old_values"]),
            &masked.tensor(&input["returns"]),
            clip,
        );
        // verl has a factor 1/2 that slime and we do not have.
        let loss = masked.reduce(&(loss.unwrap().loss_r * 0.5), &case["params"]);
        masked.check(&loss, &values, &case["output"], "grad_values", "value loss");
        count(whose);
    }
}

fn preferences(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("dpo_loss") {
        let (params, input, output) = (&case["params"], &case["input"], &case["output"]);
        let tensor = |name: &str| Tensor::from_slice(&floats(&input[name]));
        let chosen = tensor("chosen_logps").set_requires_grad(true);
        let rejected = tensor("rejected_logps").set_requires_grad(true);
        // TRL smooths labels in `aot` alone, which for a single pair is the conservative form.
        let is_it = params["loss_type"] == "sigmoid" || params["loss_type"] == "aot" && chosen.numel() == 1;
        if !is_it {
            continue;
        }
        let number = |key: &str| params[key].as_f64().unwrap();
        let loss = dpo_loss(
            &(&chosen - tensor("ref_chosen_logps")),
            &(&rejected - tensor("ref_rejected_logps")),
            number("beta"),
            number("label_smoothing"),
        );
        let loss = loss.unwrap().loss_p.mean(Kind::Double);
        close(&[loss.double_value(&[])], &[output["loss"].as_f64().unwrap()], "loss");
        loss.backward();
        close(&list(&chosen.grad()), &floats(&output["grad_chosen_logps"]), "gradient");
        close(&list(&rejected.grad()), &floats(&output["grad_rejected_logps"]), "gradient");
        count(whose);
    }
}

fn scores(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("reward_model_loss") {
        let (input, output) = (&case["input"], &case["output"]);
        if !case["params"]["center_rewards_coefficient"].is_null() {
            continue;
        }
        let tensor = |name: &str| Tensor::from_slice(&floats(&input[name]));
        let chosen = tensor("chosen_rewards").set_requires_grad(true);
        let rejected = tensor("rejected_rewards").set_requires_grad(true);
        let margin = match input["margins"].as_array() {
            Some(_) => tensor("margins"),
            None => chosen.zeros_like(),
        };
        let loss = bradley_terry_loss(&chosen, &rejected, &margin).unwrap().loss_p.mean(Kind::Double);
        close(&[loss.double_value(&[])], &[output["loss"].as_f64().unwrap()], "loss");
        loss.backward();
        close(&list(&chosen.grad()), &floats(&output["grad_chosen_rewards"]), "gradient");
        close(&list(&rejected.grad()), &floats(&output["grad_rejected_rewards"]), "gradient");
        count(whose);
    }
}

fn reducers(name: &str, count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("agg_loss") {
        let params = &case["params"];
        let mode = params["loss_agg_mode"].as_str().unwrap();
        let wanted: &[&str] = match name {
            "token_mean" => &["token-mean"],
            "constant_length" => &["seq-mean-token-sum-norm", "seq-mean-token-sum"],
            _ => &["seq-mean-token-mean"],
        };
        if !wanted.contains(&mode) || !params["dp_size"].is_null() {
            continue;
        }
        let masked = Masked::new(&case["input"]["loss_mask"]);
        let losses = masked.leaf(&case["input"]["losses"]);
        let loss = match name {
            "episode_mean" => split_episodes(&masked, &losses),
            _ => masked.reduce(&losses, params),
        };
        masked.check(&loss, &losses, &case["output"], "grad_losses", name);
        count(whose);
    }
}

/// Every sample of a case as an episode of two samples, cut after its first trained token: the mean stays what it was.
fn split_episodes(masked: &Masked, losses: &Tensor) -> Tensor {
    let mut samples = Vec::new();
    for (i, mask) in masked.masks.iter().enumerate() {
        let trained = mask.iter().filter(|m| **m != 0.0).count();
        let part = |num_trained| Weighted { num_trained, weight: 0.5, episode: (0, 0, i as u64) };
        if trained > 0 {
            samples.extend([part(1), part(trained - 1)]);
        }
    }
    let of_sample = coefficients(&samples, LossReducer::EpisodeMean, 1.0);
    let of_row: Vec<f64> = samples
        .iter()
        .zip(&of_sample)
        .flat_map(|(sample, coefficient)| vec![*coefficient; sample.num_trained])
        .collect();
    (losses * Tensor::from_slice(&of_row)).sum(Kind::Double)
}
