//! Advantages.

use std::collections::BTreeMap;

use serde_json::Value;
use slime_trainer::advantage::{
    distillation, gae, grpo, reinforce_plus_plus, reinforce_plus_plus_baseline, rloo, whiten,
};
use slime_trainer::loss::policy_loss::{Clip, ppo_clip};
use tch::Tensor;

use super::{Masked, cases, close, floats, narrow, wide};

pub fn group_relative(std: bool, count: &mut dyn FnMut(&'static str)) {
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

pub fn leave_one_out(count: &mut dyn FnMut(&'static str)) {
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

pub fn discounted(count: &mut dyn FnMut(&'static str)) {
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

pub fn baseline(count: &mut dyn FnMut(&'static str)) {
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

pub fn generalised(count: &mut dyn FnMut(&'static str)) {
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

pub fn teacher(count: &mut dyn FnMut(&'static str)) {
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

pub fn whitened(count: &mut dyn FnMut(&'static str)) {
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

/// The groups of a verl case that has more than one sample in each: members, by place.
pub fn groups(input: &Value) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, group) in input["groups"].as_array().unwrap().iter().enumerate() {
        groups.entry(group.as_u64().unwrap()).or_default().push(i);
    }
    groups.into_values().filter(|members| members.len() > 1).collect()
}

/// Compares what a group says with verl's advantages, which stand on every trained token.
pub fn check_groups(case: &Value, of_group: impl Fn(&[f32]) -> Vec<f32>) {
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
