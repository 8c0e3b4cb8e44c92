//! The names of numbers: what the tools call them now, what they called them before, and which come first.

use serde_json::Value;

use crate::read_metrics::Numbers;

/// The mean reward of the samples of a step.
pub const REWARD: &str = "rollout/raw_reward";
/// What evaluations, and `--json`, call a mean reward.
pub const REWARD_MEAN: &str = "reward_mean";
/// Seconds of a whole step.
pub const STEP_TIME: &str = "perf/step_time";

/// Today's names beside those that earlier versions wrote.
const OLDER: [(&str, &str); 16] = [
    (REWARD, REWARD_MEAN),
    ("rollout/reward_std", "reward_std"),
    ("rollout/response_len/mean", "response_len_mean"),
    ("rollout/response_lengths", "response_len_mean"),
    ("rollout/truncated", "truncated_ratio"),
    ("train/loss", "loss"),
    ("train/pg_loss", "pg_loss"),
    ("train/entropy_loss", "entropy"),
    ("train/pg_clipfrac", "clip_fraction"),
    ("train/ppo_kl", "ppo_kl"),
    ("train/kl_loss", "kl_loss"),
    ("train/grad_norm", "grad_norm"),
    ("train/lr-pg_0", "lr"),
    ("train/train_rollout_logprob_abs_diff", "log_prob_abs_diff"),
    ("train/train_rollout_logprob_abs_diff_max", "log_prob_abs_diff_max"),
    ("train/staleness", "staleness"),
];

/// Columns a reader looks for first.
pub const FIRST: [&str; 11] = [
    REWARD,
    "rollout/reward_std",
    "rollout/response_len/mean",
    "train/loss",
    "train/entropy_loss",
    "train/kl_loss",
    "train/grad_norm",
    "train/train_rollout_logprob_abs_diff",
    "train/lr-pg_0",
    STEP_TIME,
    "train/staleness",
];

/// The parts a step's time is made of, in their order; the first contains the last two, which [`phases`] takes out.
pub const PHASES: [(&str, &str); 10] = [
    ("perf/train_wait_time", "wait for samples"),
    ("perf/data_preprocess_time", "read samples"),
    ("perf/ref_log_probs_time", "reference log-probs"),
    ("perf/teacher_log_probs_time", "teacher log-probs"),
    ("perf/values_time", "values"),
    ("perf/log_probs_time", "log-probs"),
    ("perf/actor_train_time", "train"),
    ("perf/critic_train_time", "train critic"),
    ("perf/update_weights_time", "hand over weights"),
    ("perf/save_model_time", "save checkpoint"),
];

/// One number of a row under its name of today, whichever version wrote it.
pub fn number(numbers: &Numbers, name: &str) -> Option<f64> {
    if let Some(value) = numbers.get(name).and_then(Value::as_f64) {
        return Some(value);
    }
    let older = match name {
        STEP_TIME => "step_s",
        "perf/actor_train_time" => "train_s",
        _ => OLDER.iter().find(|(new, _)| *new == name)?.1,
    };
    numbers.get(older).and_then(Value::as_f64)
}

/// Label and seconds of each part of a step that the row tells, none twice.
pub fn phases(numbers: &Numbers) -> Vec<(&'static str, f64)> {
    let told = |name: &str| number(numbers, name).unwrap_or(0.0);
    // The trainer hands over weights and writes checkpoints while it waits (`slime_metrics::names`).
    let within_wait = told("perf/update_weights_time") + told("perf/save_model_time");
    let part = |(name, label): &(&str, &'static str)| {
        let seconds = number(numbers, name)?;
        let within = if *name == "perf/train_wait_time" { within_wait } else { 0.0 };
        Some((*label, (seconds - within).max(0.0)))
    };
    PHASES.iter().filter_map(part).collect()
}

/// The name of today of a number that any version wrote.
pub fn today(name: &str) -> &str {
    match name {
        "step_s" => STEP_TIME,
        "train_s" => "perf/actor_train_time",
        _ => OLDER.iter().find(|(_, older)| *older == name).map_or(name, |(newer, _)| newer),
    }
}

/// Where a name stands among those a reader looks for first; older names count as today's.
pub fn rank(name: &str) -> usize {
    let newer = today(name);
    FIRST.iter().position(|first| *first == newer).unwrap_or(FIRST.len())
}

/// Whether a row is about a trained step, not only about a generated one.
pub fn is_trained(numbers: &Numbers) -> bool {
    ["train/loss", "loss", "train/pg_loss"].iter().any(|name| numbers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_within_the_wait_is_told_once() {
        let row = "{\"perf/step_time\":26.5,\"perf/train_wait_time\":6.5,\"perf/train_time\":20,\
                   \"perf/actor_train_time\":19.5,\"perf/update_weights_time\":1.5,\"perf/save_model_time\":2}";
        let parts = phases(&serde_json::from_str(row).unwrap());
        let expected = [
            ("wait for samples", 3.0),
            ("train", 19.5),
            ("hand over weights", 1.5),
            ("save checkpoint", 2.0),
        ];
        assert_eq!(parts, expected);
        assert!(parts.iter().map(|(_, seconds)| seconds).sum::<f64>() <= 26.5);
    }

    #[test]
    fn older_names_are_found_under_todays() {
        let old: Numbers = serde_json::from_str("{\"reward_mean\":0.5,\"step_s\":2}").unwrap();
        let new: Numbers = serde_json::from_str("{\"rollout/raw_reward\":0.7,\"reward_mean\":0.5}").unwrap();
        assert_eq!((number(&old, REWARD), number(&old, STEP_TIME)), (Some(0.5), Some(2.0)));
        assert_eq!((number(&new, REWARD), number(&new, "train/loss")), (Some(0.7), None));
        assert!(rank("reward_mean") == 0 && rank("loss") < rank("num_samples"));
    }
}
