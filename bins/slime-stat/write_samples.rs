//! Numbers about samples, as lines for people and as JSON.

use serde_json::{Map, Value, json};
use slime_metrics::evaluation::add_evaluation;

use crate::read_samples::Tally;
use crate::write_table;

/// A line for each kind of number.
pub fn text(samples: &Tally) -> String {
    let mut text = format!("samples          {}", samples.num_samples);
    if !samples.groups.is_empty() {
        text.extend([format!(
            " in {} groups, {} of them with one reward throughout",
            samples.groups.len(),
            samples.num_flat_groups()
        )]);
    }
    let (mean, std) = (samples.reward_mean(), samples.reward_std());
    text.extend([format!("\nreward           mean {mean:.4}, std {std:.4}\n")]);
    for (name, num, sum, num_positive) in &samples.parts {
        let (mean, share) = (sum / *num as f64, 100.0 * *num_positive as f64 / *num as f64);
        text.extend([format!("  {name:<14} mean {mean:.4}, above 0 in {share:.1} %\n")]);
    }
    if samples.num_lens > 0 {
        let mean = samples.len_sum as f64 / samples.num_lens as f64;
        text.extend([format!("response length  mean {mean:.1} tokens, longest {}\n", samples.len_max)]);
    }
    if samples.num_ended > 0 {
        text.extend([format!("truncated        {:.1} %\n", 100.0 * truncated_share(samples))]);
    }
    text
}

fn truncated_share(samples: &Tally) -> f64 {
    samples.num_truncated as f64 / samples.num_ended as f64
}

/// `{"samples": {...}}` and a line end; null is what the rows do not tell.
pub fn json(samples: &Tally) -> String {
    let part = |(name, num, sum, num_positive): &(String, usize, f64, usize)| {
        let (mean, share) = (sum / *num as f64, *num_positive as f64 / *num as f64);
        (name.clone(), json!({"mean": mean, "positive_share": share}))
    };
    let parts: Map<String, Value> = samples.parts.iter().map(part).collect();
    let has_groups = !samples.groups.is_empty();
    let has_lens = samples.num_lens > 0;
    let value = json!({"samples": {
        "num_samples": samples.num_samples,
        "num_groups": has_groups.then_some(samples.groups.len()),
        "num_flat_groups": has_groups.then_some(samples.num_flat_groups()),
        "reward_mean": samples.reward_mean(),
        "reward_std": samples.reward_std(),
        "rewards": parts,
        "response_len_mean": has_lens.then(|| samples.len_sum as f64 / samples.num_lens as f64),
        "response_len_max": has_lens.then_some(samples.len_max),
        "truncated_share": (samples.num_ended > 0).then(|| truncated_share(samples)),
    }});
    format!("{value}\n")
}

/// The numbers of the evaluation that the samples are, one a line; `slime-stat RUN --eval` has the same names.
pub fn evaluation(samples: &Tally) -> String {
    let mut row = slime_metrics::Row::default();
    add_evaluation(&mut row, samples.answered.as_deref().unwrap_or_default());
    let numbers: Vec<(&str, f64)> = row.numbers().collect();
    let width = numbers.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line =
        |(name, value): &(&str, f64)| format!("{name:<width$}  {}\n", write_table::number(Some(*value)));
    let lines: Vec<String> = numbers.iter().map(line).collect();
    lines.concat()
}
