//! Losses, terms and reducers, with their gradients.

use serde_json::Value;
use slime_config::{KlLossType, LossReducer};
use slime_model::ops::head_log_probs::{self, Shaping};
use slime_trainer::loss::Sequences;
use slime_trainer::loss::kl::{approx_kl, exact_kl};
use slime_trainer::loss::policy_loss::{Clip, PolicyLoss, cispo, gspo_log_ratio, ppo_clip};
use slime_trainer::loss::preference::{bradley_terry_loss, dpo_loss};
use slime_trainer::loss::reducer::{Weighted, coefficients};
use slime_trainer::loss::sft::sft_loss;
use slime_trainer::loss::value_loss::value_loss;
use tch::{Device, Kind, Tensor};

use super::{Masked, cases, close, floats, list};

pub fn clip_of(params: &Value) -> Clip {
    let number = |keys: [&str; 2]| keys.iter().find_map(|key| params[*key].as_f64());
    let low = number(["eps_clip", "clip_low"]).unwrap();
    Clip {
        low,
        high: number(["eps_clip_high", "clip_high"]).unwrap(),
        dual: number(["eps_clip_c", "clip_ratio_c"]),
    }
}

pub fn clipped(count: &mut dyn FnMut(&'static str)) {
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

pub fn check_policy_loss(case: &Value, of: impl Fn(&Tensor, &Tensor, &Tensor, &Sequences) -> PolicyLoss) {
    let input = &case["input"];
    let masked = Masked::new(&input["loss_mask"]);
    let new = masked.leaf(&input["log_probs"]);
    let (old, advantages) = (masked.tensor(&input["old_log_probs"]), masked.tensor(&input["advantages"]));
    let result = of(&new, &old, &advantages, &masked.sequences);
    let loss = masked.reduce(&result.loss_r, &case["params"]);
    masked.check(&loss, &new, &case["output"], "grad_log_probs", "policy loss");
}

pub fn sequence_clipped(count: &mut dyn FnMut(&'static str)) {
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

pub fn weighted(count: &mut dyn FnMut(&'static str)) {
    for (whose, case) in cases("cispo_loss") {
        let tensor = |name: &str| Tensor::from_slice(&floats(&case["input"][name]));
        let new = tensor("log_probs").set_requires_grad(true);
        let result =
            cispo(&new, &tensor("old_log_probs"), &tensor("advantages"), clip_of(&case["params"])).unwrap();
        result.loss_r.sum(Kind::Double).backward();
        close(&list(&result.loss_r), &floats(&case["output"]["loss"]), "loss");
        close(&list(&result.clipped_r), &floats(&case["output"]["clipped"]), "clipped");
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

pub fn estimators(name: &str, count: &mut dyn FnMut(&'static str)) {
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

pub fn unbiased(count: &mut dyn FnMut(&'static str)) {
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
pub fn matrices(masked: &Masked, lists: &Value) -> Tensor {
    let rows: Vec<Tensor> = masked
        .places
        .iter()
        .map(|place| Tensor::from_slice(&floats(&lists[place.sample][place.token])))
        .collect();
    Tensor::stack(&rows, 0)
}

pub fn whole_kl(count: &mut dyn FnMut(&'static str)) {
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
pub fn head(logits: &Tensor, targets: &Tensor) -> (Tensor, Tensor) {
    let identity = Tensor::eye(logits.size()[1], (Kind::Double, Device::Cpu));
    head_log_probs::train(logits, &identity, targets, &Shaping::at(1.0)).unwrap()
}

pub fn logits_and_targets(case: &Value) -> (Tensor, Tensor) {
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

pub fn entropy(count: &mut dyn FnMut(&'static str)) {
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

pub fn cross_entropy(count: &mut dyn FnMut(&'static str)) {
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

pub fn values(count: &mut dyn FnMut(&'static str)) {
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

pub fn preferences(count: &mut dyn FnMut(&'static str)) {
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

pub fn scores(count: &mut dyn FnMut(&'static str)) {
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

pub fn reducers(name: &str, count: &mut dyn FnMut(&'static str)) {
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
pub fn split_episodes(masked: &Masked, losses: &Tensor) -> Tensor {
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
