//! Every number a metric file may contain, with its unit and meaning, and slime's names that mean nothing here.
//!
//! The names are those of the public framework slime (`wandb` keys of its rollout manager and its trainer), so curves of
//! both lie side by side; where slime has no name, ours stand in the same families. In a name `<word>` stands for any
//! text.

/// A number of a metric file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// As it stands in the file; `<word>` is any text.
    pub key: &'static str,
    /// Empty for pure numbers.
    pub unit: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

const fn name(key: &'static str, unit: &'static str, meaning: &'static str) -> Name {
    Name { key, unit, meaning }
}

/// `metrics/train.jsonl`, one line a step; with several optimizer steps the means over them. "Sample mean" is the mean
/// over samples, by their weights, of the mean over a sample's trained tokens.
pub const TRAIN: &[Name] = &[
    name("train/loss", "", "what is minimised, with the reducer's denominator (pairs: their mean)"),
    name("train/pg_loss", "", "policy loss alone, with the reducer's denominator"),
    name("train/entropy_loss", "nats", "entropy of the policy, with the reducer's denominator"),
    name("train/pg_clipfrac", "share", "tokens that clipping changed, with the reducer's denominator"),
    name("train/ois", "", "ratio of the policy to the old one, with the reducer's denominator"),
    name("train/tis", "", "ratio of training to generation before it is bounded; only with a correction"),
    name("train/tis_clipfrac", "share", "tokens whose weight was bounded; only with a correction"),
    name("train/tis_abs", "", "|ratio - 1|; only with a correction"),
    name(
        "train/mis_kl",
        "nats",
        "log-prob of generation minus training; only with a correction or rejection",
    ),
    name("train/mis_k3_kl", "nats", "the same by the k3 estimator; only with a correction or rejection"),
    name("train/mis_rs_mask_fraction", "share", "tokens that were rejected; only with rejection or veto"),
    name(
        "train/opsm_clipfrac",
        "share",
        "tokens of sequences that went too far, sample mean; only with opsm_delta",
    ),
    name(
        "train/critic-value_loss",
        "",
        "squared error of the critic's values, with the reducer's denominator; only with one",
    ),
    name(
        "train/critic-value_clipfrac",
        "share",
        "values that moved further than the clip; only with a critic",
    ),
    name("train/critic-grad_norm", "", "norm of the critic's gradient before clipping; only with a critic"),
    name("train/critic-lr-pg_0", "", "learning rate of the critic; only with one"),
    name(
        "train/rewards/chosen",
        "",
        "what the loss takes for the reward of the better answers; only with pairs",
    ),
    name("train/rewards/rejected", "", "the same of the worse answers; only with pairs"),
    name(
        "train/rewards/accuracies",
        "share",
        "pairs whose better answer has the higher reward; only with pairs",
    ),
    name("train/ppo_kl", "nats", "old minus new log-prob, with the reducer's denominator"),
    name(
        "train/mtp_loss",
        "nats",
        "cross-entropy of the layer for further tokens, over its predictions; only with train.mtp_loss_coef",
    ),
    name("train/kl_loss", "nats", "KL(policy || reference) of the loss; only with a reference"),
    name("train/grad_norm", "", "norm of the gradient before clipping"),
    name("train/lr-pg_0", "", "learning rate; all parameters are one group"),
    name(
        "train/train_rollout_logprob_abs_diff",
        "nats",
        "mean over tokens of |log-prob of training - of generation|",
    ),
    name("train/train_rollout_logprob_abs_diff_max", "nats", "the largest of them"),
    name("train/global_batch_size", "samples", "samples of one optimizer step"),
    name("train/staleness", "versions", "step minus the oldest version among the trained tokens"),
    name(
        "train/num_masked_samples",
        "samples",
        "samples of one optimizer step without a trained token (ours)",
    ),
    name("train/num_skipped_steps", "steps", "optimizer steps left out, as they were not finite (ours)"),
    name("train/num_trained_tokens", "tokens", "trained tokens of one optimizer step (ours)"),
    name(
        "train/num_forward_tokens",
        "tokens",
        "tokens that went through the model, a shared prompt once (ours)",
    ),
    name(
        "train/num_unshared_tokens",
        "tokens",
        "the same with every prompt computed for every sample (ours)",
    ),
    name("rollout/raw_reward", "", "mean reward of the samples; only where they have one"),
    name("rollout/rewards", "", "mean reward after the normalisation within groups; 0 but for rounding"),
    name("rollout/reward_std", "", "standard deviation of the rewards over all samples (ours)"),
    name("rollout/response_lengths", "tokens", "mean length of responses, masked tokens counted"),
    name("rollout/total_lengths", "tokens", "mean length of prompt and response"),
    name("rollout/truncated", "share", "responses that were cut off for their length"),
    name("rollout/log_probs", "nats", "log-prob of the policy before its update, sample mean"),
    name(
        "rollout/rollout_log_probs",
        "nats",
        "log-prob at generation, sample mean; only where it was recorded",
    ),
    name("rollout/ref_log_probs", "nats", "log-prob of the reference, sample mean; only with a reference"),
    name("rollout/advantages", "", "advantage, sample mean"),
    name(
        "rollout/kl",
        "nats",
        "log-prob of the policy minus the reference, sample mean; only with a reference",
    ),
    name("rollout/values", "", "value before the critic's update, sample mean; only with a critic"),
    name("rollout/returns", "", "what the critic learns, sample mean; only with a critic"),
    name("rollout/teacher_log_probs", "nats", "log-prob of the teacher, sample mean; only with a teacher"),
    name(
        "rollout/opd_reverse_kl",
        "nats",
        "log-prob of the policy minus the teacher, sample mean; only with a teacher",
    ),
    name("rollout/entropy", "nats", "entropy of the policy before its update, sample mean"),
    name("perf/step_time", "s", "train_wait_time plus train_time"),
    name(
        "perf/train_wait_time",
        "s",
        "from the end of the step before (or the start) until the step's samples were committed",
    ),
    name("perf/train_time", "s", "the step's training; its parts are the next nine"),
    name("perf/data_preprocess_time", "s", "joining, advantages, packing"),
    name("perf/log_probs_time", "s", "log-probs before the first of several optimizer steps; 0 with one"),
    name("perf/ref_log_probs_time", "s", "log-probs of the reference; 0 without one"),
    name("perf/teacher_log_probs_time", "s", "log-probs of the teacher; 0 without one"),
    name("perf/values_time", "s", "the critic's values before its update; 0 without one"),
    name("perf/advantages_time", "s", "advantages from what is fixed"),
    name("perf/critic_train_time", "s", "all optimizer steps of the critic; 0 without one"),
    name("perf/ref_model_update_time", "s", "the reference becoming the policy; 0 where it stays"),
    name("perf/actor_train_time", "s", "forward, backward and update of all optimizer steps"),
    name(
        "perf/update_weights_time",
        "s",
        "writing the version that the step began with; part of train_wait_time",
    ),
    name(
        "perf/update_weights_wire_bytes",
        "bytes",
        "tensors of that version, or what changed in them with sync.transport = \"delta\"",
    ),
    name(
        "perf/save_model_time",
        "s",
        "copying the state for checkpoints since the step before, while training stands; part of train_wait_time",
    ),
    name(
        "perf/write_model_time",
        "s",
        "writing the checkpoint that was completed since the step before, beside training",
    ),
    name("perf/wait_time_ratio", "share", "train_wait_time of step_time"),
    name("perf/log_probs_tflops", "TFLOP/s", "of one rank, computed tokens; only where it was done"),
    name("perf/ref_log_probs_tflops", "TFLOP/s", "of one rank, computed tokens; only where it was done"),
    name("perf/actor_train_tflops", "TFLOP/s", "of one rank, three forward passes over the computed tokens"),
    name("perf/mfu", "share", "actor_train_tflops of metrics.peak_tflops; only where that is set"),
    name(
        "perf/actor_train_tok_per_s",
        "tokens/s",
        "tokens of prompts and responses a second of actor_train, all ranks",
    ),
    name("perf/max_rss_gb", "GB", "largest resident memory of a rank so far"),
    name(
        "perf/max_gpu_gb",
        "GB",
        "most memory in use on a GPU of the trainer at the end of the step, by all processes; only where there is one",
    ),
    name(
        "perf/pipeline_bubble",
        "share",
        "share of training in which a stage waited for another one, mean over the ranks; only with stages (ours)",
    ),
    name(
        "perf/busy_fraction/min",
        "share",
        "time a rank computed, neither waiting for data nor for others: the least",
    ),
    name("perf/busy_fraction/max", "share", "the same: the greatest"),
    name("perf/metrics_time", "s", "time that measuring took since the step before (ours)"),
    name("perf/num_ranks", "ranks", "ranks of the trainer (ours)"),
];

/// `metrics/rollout.jsonl`, one line a committed step.
pub const ROLLOUT: &[Name] = &[
    name(
        "rollout/response_len/mean",
        "tokens",
        "trained tokens (set in the loss mask) of a response: their mean",
    ),
    name("rollout/response_len/median", "tokens", "the same: the median"),
    name("rollout/response_len/max", "tokens", "the same: the most"),
    name("rollout/response_len/min", "tokens", "the same: the fewest"),
    name("rollout/truncated_ratio", "share", "responses that were cut off for their length"),
    name(
        "rollout/repetition_frac",
        "share",
        "responses above 10000 characters whose last 10000 zlib makes 10 times smaller",
    ),
    name(
        "rollout/top_p_kept_vocab_per_token",
        "ids",
        "ids that top-k, top-p and min-p left to a response token that they cut: the mean",
    ),
    name(
        "rollout/zero_std/count_<reward>",
        "groups",
        "committed groups whose rewards are all this (rounded to 0.1)",
    ),
    name(
        "rollout/zero_std_ratio",
        "share",
        "groups with equal rewards, of those committed and refused (ours)",
    ),
    name("rollout/dynamic_filter/drop_<reason>", "groups", "groups that the filter refused for this reason"),
    name(
        "rollout/prefix_cache_hit_rate",
        "share",
        "prompt tokens that a sample of the same group had computed",
    ),
    name("rollout/reward/<part>", "", "mean of one part of the reward, before its weight"),
    name(
        "rollout/staleness/<versions>",
        "samples",
        "committed samples whose oldest trained token is so many versions behind (ours)",
    ),
    name(
        "rollout/tokens/<fate>",
        "tokens",
        "what became of response tokens: finished since the step before, trained, masked for their age, untrained, reused, refused, expired, surplus, carried, replaced (ours)",
    ),
    name("perf/rollout_time", "s", "from the first draw for the step to its commit"),
    name(
        "perf/tokens_per_gpu_per_sec",
        "tokens/s",
        "response tokens of the step, for each engine and second of rollout_time",
    ),
    name("perf/effective_tokens_per_gpu_per_sec", "tokens/s", "the same of trained tokens"),
    name(
        "perf/longest_sample_tokens_per_sec",
        "tokens/s",
        "tokens of the longest response, a second of rollout_time",
    ),
    name(
        "passrate/pass@<k>",
        "share",
        "probability that one of k samples of a prompt has reward 1; groups of one have none",
    ),
    name(
        "perf/builder_metrics_time",
        "s",
        "time that measuring took in this process since the step before (ours)",
    ),
    name("perf/num_engines", "engines", "replicas of the run (ours)"),
    name("rollout/num_samples", "samples", "samples of the step (ours)"),
];

/// `metrics/rollout.jsonl`, one line for each evaluation of a set.
pub const EVALUATION: &[Name] = &[
    name("reward_mean", "", "mean reward of the set's samples; eval/<set> in TensorBoard"),
    name("response_len_mean", "tokens", "mean length of responses"),
    name("response_len_max", "tokens", "length of the longest response"),
    name("truncated_ratio", "share", "responses that were cut off for their length"),
    name(
        "repetition_frac",
        "share",
        "responses above 10000 characters whose last 10000 zlib makes 10 times smaller",
    ),
    name("pass@<k>", "share", "probability that one of k samples of a prompt has reward 1"),
    name("mean@<n>", "", "mean reward of n samples of a prompt: the mean over prompts"),
    name("majority@<n>", "", "reward of the most frequent of n answers to a prompt: the mean over prompts"),
    name("num_samples", "samples", "samples of the set"),
];

/// `metrics/engine-<replica>.jsonl`, every few seconds while the engine is busy.
pub const ENGINE: &[Name] = &[
    name("num_running", "sequences", "most sequences computed at once since the line before"),
    name("num_waiting", "sequences", "most sequences that waited for room since the line before"),
    name("tokens_per_s", "tokens/s", "tokens sampled a second since the line before"),
    name("kv_used", "share", "largest share of the KV cache's blocks in use since the line before"),
    name(
        "prefix_hit_rate",
        "share",
        "prompt tokens that the cache had, of the samples that finished since the line before",
    ),
    name(
        "spec_accept_length",
        "tokens",
        "tokens that a pass with guessed ones yields: the mean over samples that finished since the line before",
    ),
    name("spec_accept_rate", "share", "guessed tokens that were right, of the same samples"),
    name(
        "busy",
        "share",
        "time in the engine since the line before, pauses of more than two seconds left out",
    ),
];

/// `metrics/warnings.jsonl`, one line for each warning when it begins.
pub const WARNINGS: &[Name] = &[
    name("value", "", "what was compared with the threshold"),
    name("threshold", "", "the setting of [metrics.warnings]"),
];

/// Slime's names that are not told, and why; `*` is any rest.
pub const ABSENT: &[(&str, &str)] = &[
    ("rollout/spec_accept_*", "each engine tells spec_accept_length and spec_accept_rate"),
    (
        "rollout/avg_cached_tokens_per_sample",
        "prompts are shared within a group only: see prefix_cache_hit_rate",
    ),
    ("rollout/error_cat/*", "a reward that fails ends its tool: there are no samples with an error"),
    ("train/mtp_*", "no model here predicts several tokens"),
    ("perf/{sleep,wake_up}_time", "these phases do not exist"),
    ("perf/non_generation_time/*", "rewards run beside generation: spans of the trace tell their times"),
    ("perf/{request,prefill,decode}/*", "queued, prefill and decode of each sample are spans of the trace"),
    ("perf/update_weights_density", "update_weights_wire_bytes tells what the changed values come to"),
    ("multi_turn/*", "samples have one turn"),
];

/// Fields of a line that are no numbers of it: who, when, about what.
pub const FIELDS: [&str; 7] = ["step", "version", "set", "tool", "time", "kind", "message"];

/// The families of numbers by the file they stand in.
pub const FILES: [(&str, &[Name]); 5] = [
    ("train", TRAIN),
    ("rollout", ROLLOUT),
    ("evaluation", EVALUATION),
    ("engine", ENGINE),
    ("warnings", WARNINGS),
];

/// The entry of a number, whatever file it stands in.
pub fn find(key: &str) -> Option<&'static Name> {
    FILES.iter().find_map(|(_, names)| find_in(names, key))
}

/// The entry of a number of one family.
pub fn find_in(names: &'static [Name], key: &str) -> Option<&'static Name> {
    names.iter().find(|name| matches(name.key, key))
}

/// Whether `key` is `pattern` with some text for its `<word>`.
fn matches(pattern: &str, key: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('<') else { return pattern == key };
    let tail = tail.split_once('>').map_or("", |(_, tail)| tail);
    key.len() > head.len() + tail.len() && key.starts_with(head) && key.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_told_twice_and_every_one_is_explained() {
        let mut seen = BTreeSet::new();
        for (file, names) in FILES {
            for name in names {
                assert!(seen.insert(name.key), "{file}: {} twice", name.key);
                assert!(!name.meaning.is_empty(), "{file}: {}", name.key);
            }
        }
        assert!(ABSENT.iter().all(|(key, reason)| !seen.contains(key) && !reason.is_empty()));
    }

    #[test]
    fn patterns_stand_for_any_text() {
        assert_eq!(find("rollout/zero_std/count_0.0").unwrap().key, "rollout/zero_std/count_<reward>");
        assert_eq!(find("passrate/pass@16").unwrap().key, "passrate/pass@<k>");
        assert_eq!(find("train/loss").unwrap().key, "train/loss");
        for unknown in ["rollout/zero_std/count_", "loss", "reward_std", "passrate/pass@"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }
}
