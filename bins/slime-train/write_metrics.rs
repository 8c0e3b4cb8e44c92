//! The numbers of a trained step under the names of `slime_metrics::names`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use slime_config::Metrics;
use slime_metrics::Row;
use slime_record::{Manifest, SampleId};
use slime_trainer::{Report, StepMetrics};

/// Operations of forward and backward together, in forward passes.
const TRAIN_PASSES: f64 = 3.0;
const GB: f64 = 1e9;

/// How long a step took on rank 0, and what it waited for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// From the end of the step before to the step's commit.
    pub wait: Duration,
    /// Of it: writing the weights of the version that the step began with.
    pub update_weights: Duration,
    /// Bytes of weights that were written for it.
    pub num_wire_bytes: u64,
    /// Of it: copying the state for checkpoints, and waiting for the one before.
    pub save_model: Duration,
    /// From the copy to the last rank's file of a checkpoint that was written since the step before.
    pub write_model: Option<Duration>,
    /// The training.
    pub train: Duration,
    /// Of it: what rank 0 did before all ranks began.
    pub read: Duration,
    /// What measuring took since the step before.
    pub metrics: Duration,
}

/// What the ranks of a step tell of themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ranks {
    /// How many.
    pub num: usize,
    /// Largest resident memory in bytes.
    pub max_rss: f64,
    /// Most bytes in use on a rank's GPU; 0 without one.
    pub max_gpu: f64,
    /// Least and greatest share of its time that a rank computed.
    pub busy: (f64, f64),
    /// Share of the passes that stages of a pipeline waited for each other, over all ranks; `None` without stages.
    pub bubble: Option<f64>,
}

/// The line of a step; with several optimizer steps the numbers are the means of those that have them: one that was left
/// out has no loss.
pub fn row(
    manifest: &Manifest,
    steps: &[StepMetrics],
    times: Times,
    report: &Report,
    ranks: Ranks,
    settings: &Metrics,
) -> Row {
    let mut row = Row::of_step(manifest.step, "train");
    let mut sums: Vec<(&str, f64, usize)> = Vec::new();
    for (name, value) in steps.iter().flat_map(numbers) {
        match sums.iter_mut().find(|(other, ..)| *other == name) {
            Some((_, sum, num)) => (*sum, *num) = (*sum + value, *num + 1),
            None => sums.push((name, value, 1)),
        }
    }
    for (name, sum, num) in sums {
        row.set(name, sum / num as f64);
    }
    row.count("train/num_skipped_steps", steps.iter().filter(|step| step.is_skipped).count() as u64);
    row.count("train/staleness", manifest.staleness());
    add_times(&mut row, times, report);
    let num_tokens: usize = steps.iter().map(|step| step.num_unshared_tokens).sum();
    add_speed(&mut row, num_tokens, report, settings);
    row.count("perf/num_ranks", ranks.num as u64);
    row.set("perf/max_rss_gb", ranks.max_rss / GB);
    if ranks.max_gpu > 0.0 {
        row.set("perf/max_gpu_gb", ranks.max_gpu / GB);
    }
    row.set_some("perf/pipeline_bubble", ranks.bubble);
    row.set("perf/busy_fraction/min", ranks.busy.0);
    row.set("perf/busy_fraction/max", ranks.busy.1);
    row
}

/// The numbers of one optimizer step.
pub fn numbers(step: &StepMetrics) -> Vec<(&'static str, f64)> {
    let StepMetrics { num_samples, num_masked_samples, num_trained_tokens, .. } = step;
    let mut numbers = vec![
        ("train/global_batch_size", *num_samples as f64),
        ("train/num_masked_samples", *num_masked_samples as f64),
        ("train/num_trained_tokens", *num_trained_tokens as f64),
        ("train/num_forward_tokens", step.num_forward_tokens as f64),
        ("train/num_unshared_tokens", step.num_unshared_tokens as f64),
        ("rollout/response_lengths", step.response_len_mean),
        ("rollout/total_lengths", step.total_len_mean),
        ("rollout/truncated", step.truncated_ratio),
    ];
    let mut put = |name, value: Option<f64>| numbers.extend(value.map(|value| (name, value)));
    put("rollout/raw_reward", step.reward_mean);
    put("rollout/reward_std", step.reward_std);
    put("rollout/rewards", step.reward_mean.map(|_| step.normalized_reward_mean));
    if step.is_update {
        let recorded = |value: f64| step.rollout_log_probs.map(|_| value);
        put("train/loss", Some(step.loss));
        put("train/pg_loss", Some(step.pg_loss));
        put("train/entropy_loss", Some(step.entropy));
        put("train/pg_clipfrac", Some(step.clip_fraction));
        put("train/ppo_kl", Some(step.ppo_kl));
        put("train/kl_loss", step.ref_log_probs.map(|_| step.kl_loss));
        put("train/grad_norm", Some(step.grad_norm));
        put("train/lr-pg_0", Some(step.lr));
        put("train/train_rollout_logprob_abs_diff", recorded(step.log_prob_abs_diff));
        put("train/train_rollout_logprob_abs_diff_max", recorded(step.log_prob_abs_diff_max));
        put("rollout/log_probs", Some(step.log_probs));
        put("rollout/rollout_log_probs", step.rollout_log_probs);
        put("rollout/ref_log_probs", step.ref_log_probs);
        put("rollout/advantages", Some(step.advantages));
        put("rollout/entropy", Some(step.start_entropy));
    }
    numbers.extend(step.extra.iter().map(|(name, value)| (*name, *value)));
    numbers
}

fn add_times(row: &mut Row, times: Times, report: &Report) {
    let step = times.wait + times.train;
    for (name, time) in [
        ("perf/step_time", step),
        ("perf/train_wait_time", times.wait),
        ("perf/train_time", times.train),
        ("perf/data_preprocess_time", times.read + report.data_preprocess),
        ("perf/log_probs_time", report.log_probs),
        ("perf/ref_log_probs_time", report.ref_log_probs),
        ("perf/teacher_log_probs_time", report.teacher_log_probs),
        ("perf/values_time", report.values),
        ("perf/advantages_time", report.advantages),
        ("perf/critic_train_time", report.critic_train),
        ("perf/ref_model_update_time", report.ref_model_update),
        ("perf/actor_train_time", report.actor_train),
        ("perf/update_weights_time", times.update_weights),
        ("perf/save_model_time", times.save_model),
        ("perf/metrics_time", times.metrics),
    ] {
        row.set(name, time.as_secs_f64());
    }
    row.count("perf/update_weights_wire_bytes", times.num_wire_bytes);
    row.set_some("perf/write_model_time", times.write_model.map(|time| time.as_secs_f64()));
    row.set("perf/wait_time_ratio", ratio(times.wait, step));
}

fn add_speed(row: &mut Row, num_tokens: usize, report: &Report, settings: &Metrics) {
    let tflops = |passes: f64, time: Duration| {
        (time > Duration::ZERO).then(|| passes * report.forward_flops / time.as_secs_f64() / 1e12)
    };
    row.set_some("perf/log_probs_tflops", tflops(1.0, report.log_probs));
    row.set_some("perf/ref_log_probs_tflops", tflops(1.0, report.ref_log_probs));
    let train = tflops(TRAIN_PASSES, report.actor_train);
    row.set_some("perf/actor_train_tflops", train);
    row.set_some("perf/mfu", train.zip(settings.peak_tflops).map(|(train, peak)| train / peak));
    if report.actor_train > Duration::ZERO {
        row.set("perf/actor_train_tok_per_s", num_tokens as f64 / report.actor_train.as_secs_f64());
    }
}

/// A share of a time; 0 of none.
pub fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// Adds a line with the names of the samples whose part of a number was not finite.
///
/// # Errors
/// The disk refuses.
pub fn write_not_finite(path: &Path, step: u64, what: &str, samples: &[SampleId]) -> std::io::Result<()> {
    let samples: Vec<String> = samples.iter().map(ToString::to_string).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{}", json!({ "step": step, "what": what, "samples": samples }))?;
    file.sync_all()
}
