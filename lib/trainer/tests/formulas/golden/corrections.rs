//! Corrections of the mismatch between generation and training.

use serde_json::Value;
use slime_config::{Correction, CorrectionWeight, RatioLevel};
use slime_trainer::loss::correction::{correct, off_policy_keep};
use slime_trainer::loss::policy_loss::ppo_clip;
use tch::{Kind, Tensor};

use super::losses::clip_of;
use super::{Masked, cases, close, floats, list};

pub fn weights(name: &str, count: &mut dyn FnMut(&'static str)) {
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
            close(&list(&(&got.ratio_r - 1.0).abs()), &floats(&output["tis_abs"]), "distance from 1");
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
pub fn bounds(threshold: &Value) -> (CorrectionWeight, Option<f64>, Option<f64>) {
    match threshold.as_str().and_then(|text| text.split_once('_')) {
        Some((low, high)) => (CorrectionWeight::Mask, low.parse().ok(), high.parse().ok()),
        None => (CorrectionWeight::Truncate, None, threshold.as_f64()),
    }
}

pub fn level_of(word: &Value) -> Option<RatioLevel> {
    match word.as_str()? {
        "token" => Some(RatioLevel::Token),
        "sequence" => Some(RatioLevel::Sequence),
        "geometric" => Some(RatioLevel::Geometric),
        other => panic!("{other}"),
    }
}

pub fn decoupled(count: &mut dyn FnMut(&'static str)) {
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

pub fn rejections(name: &str, count: &mut dyn FnMut(&'static str)) {
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

pub fn sequence_masks(count: &mut dyn FnMut(&'static str)) {
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
