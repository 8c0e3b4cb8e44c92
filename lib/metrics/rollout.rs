//! The numbers of a step's samples: lengths, rewards by part, groups that teach nothing, repetition, rates.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use slime_record::{Sample, Status};

use crate::Row;
use crate::pass_rate::add_pass_rates;

/// Texts up to this many characters are never called repetitive, and only so many of the last are looked at (slime,
/// `has_repetition`).
const REPETITION_CHARS: usize = 10_000;
/// A text that zlib makes so many times smaller repeats itself.
const REPETITION_RATIO: f64 = 10.0;
/// zlib's best.
const REPETITION_LEVEL: u32 = 9;

/// A sample with what it was rewarded.
#[derive(Debug, Clone)]
pub struct Rewarded {
    /// The sample.
    pub sample: Sample,
    /// Its reward; none where responses are recorded.
    pub reward: Option<f32>,
    /// The parts of the reward by name, as far as they are known.
    pub parts: BTreeMap<String, f64>,
}

/// How long it took, and with what.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// From the first draw to the commit, in seconds.
    pub rollout_s: f64,
    /// Engines that generated.
    pub num_engines: u32,
}

/// Adds the numbers of a committed step; each group is the samples of one prompt. `num_equal_refused` of `num_refused`
/// groups were refused for equal rewards.
pub fn add_step(row: &mut Row, groups: &[Vec<Rewarded>], num_refused: usize, num_equal_refused: usize) {
    let samples = || groups.iter().flatten();
    let num = samples().count();
    row.count("rollout/num_samples", num as u64);
    if num == 0 {
        return;
    }
    add_lengths(row, samples().map(|s| trained_len(&s.sample)).collect());
    row.set("rollout/truncated_ratio", share(samples().map(|s| s.sample.status == Status::Truncated)));
    row.set("rollout/repetition_frac", share(samples().map(|s| repeats(&s.sample.response))));
    let kept_lens = samples().flat_map(|s| &s.sample.kept_lens).filter(|len| **len > 0);
    let (sum, count) = kept_lens.fold((0, 0), |(sum, count), len| (sum + u64::from(*len), count + 1));
    if count > 0 {
        row.set("rollout/top_p_kept_vocab_per_token", sum as f64 / f64::from(count));
    }
    if samples().any(|sample| sample.reward.is_some()) {
        add_rewards(row, groups, num_refused, num_equal_refused);
    }
}

/// Adds what only sampled groups have: rewards, and an engine that computed their prompts.
fn add_rewards(row: &mut Row, groups: &[Vec<Rewarded>], num_refused: usize, num_equal_refused: usize) {
    let samples = || groups.iter().flatten();
    let mut num_equal = num_equal_refused;
    for (reward, count) in equal_groups(groups) {
        row.count(format!("rollout/zero_std/count_{reward}"), count);
        num_equal += count as usize;
    }
    row.set("rollout/zero_std_ratio", num_equal as f64 / (groups.len() + num_refused).max(1) as f64);
    row.set("rollout/prefix_cache_hit_rate", shared_prompt_ratio(groups));
    let mut parts: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (name, value) in samples().flat_map(|sample| &sample.parts) {
        let (sum, count) = parts.entry(name).or_default();
        *sum += value;
        *count += 1;
    }
    for (name, (sum, count)) in parts {
        row.set(format!("rollout/reward/{name}"), sum / count as f64);
    }
    let rewards: Vec<Vec<f32>> =
        groups.iter().map(|group| group.iter().filter_map(|s| s.reward).collect()).collect();
    add_pass_rates(row, "passrate/", &rewards);
}

/// Adds how fast the step's tokens came.
pub fn add_pace(row: &mut Row, groups: &[Vec<Rewarded>], pace: Pace) {
    let samples = || groups.iter().flatten().map(|rewarded| &rewarded.sample);
    let (tokens, trained): (usize, usize) =
        (samples().map(Sample::response_len).sum(), samples().map(trained_len).sum());
    let longest = samples().map(Sample::response_len).max().unwrap_or(0);
    let Pace { rollout_s, num_engines } = pace;
    row.set("perf/rollout_time", rollout_s);
    row.count("perf/num_engines", num_engines.into());
    if rollout_s > 0.0 {
        let engine_s = rollout_s * f64::from(num_engines.max(1));
        row.set("perf/tokens_per_gpu_per_sec", tokens as f64 / engine_s);
        row.set("perf/effective_tokens_per_gpu_per_sec", trained as f64 / engine_s);
        row.set("perf/longest_sample_tokens_per_sec", longest as f64 / rollout_s);
    }
}

/// The smallest and the largest reward of each source.
pub fn rewards_by_source(groups: &[Vec<Rewarded>]) -> BTreeMap<&str, (f32, f32)> {
    let mut sources: BTreeMap<&str, (f32, f32)> = BTreeMap::new();
    for Rewarded { sample, reward, .. } in groups.iter().flatten() {
        let Some(reward) = *reward else { continue };
        let (least, greatest) = sources.entry(&sample.source).or_insert((reward, reward));
        *least = least.min(reward);
        *greatest = greatest.max(reward);
    }
    sources
}

fn trained_len(sample: &Sample) -> usize {
    sample.loss_mask.iter().filter(|mask| **mask != 0).count()
}

fn add_lengths(row: &mut Row, mut lens: Vec<usize>) {
    lens.sort_unstable();
    let (num, middle) = (lens.len(), lens.len() / 2);
    let median = (lens[(num - 1) / 2] + lens[middle]) as f64 / 2.0;
    row.set("rollout/response_len/mean", lens.iter().sum::<usize>() as f64 / num as f64);
    row.set("rollout/response_len/median", median);
    row.count("rollout/response_len/max", lens[num - 1] as u64);
    row.count("rollout/response_len/min", lens[0] as u64);
}

fn share(claims: impl Iterator<Item = bool>) -> f64 {
    let (mut num, mut num_true) = (0_usize, 0_usize);
    for claim in claims {
        num += 1;
        num_true += usize::from(claim);
    }
    num_true as f64 / num.max(1) as f64
}

/// Groups of several samples whose rewards are all equal, by that reward rounded to a tenth.
fn equal_groups(groups: &[Vec<Rewarded>]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for group in groups {
        let rewards: Vec<f32> = group.iter().filter_map(|sample| sample.reward).collect();
        let is_equal = rewards.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq());
        if let Some(first) = rewards.first().filter(|_| is_equal && rewards.len() > 1) {
            // Plus 0 turns -0 into 0.
            let reward = (first * 10.0).round() / 10.0 + 0.0;
            *counts.entry(format!("{reward:.1}")).or_default() += 1;
        }
    }
    counts
}

/// An engine computes the prompt of a group once, but for its last token, whose logits each sample needs.
fn shared_prompt_ratio(groups: &[Vec<Rewarded>]) -> f64 {
    let prompt_len = |group: &[Rewarded]| group.first().map_or(0, |s| s.sample.prompt_len as usize);
    let all: usize = groups.iter().map(|group| group.len() * prompt_len(group)).sum();
    let shared: usize =
        groups.iter().map(|group| group.len().saturating_sub(1) * prompt_len(group).saturating_sub(1)).sum();
    shared as f64 / all.max(1) as f64
}

/// Whether the end of a long text is so regular that zlib makes it ten times smaller.
pub fn repeats(text: &str) -> bool {
    let Some((start, _)) = text.char_indices().rev().nth(REPETITION_CHARS - 1) else { return false };
    if start == 0 {
        return false;
    }
    let end = &text.as_bytes()[start..];
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(REPETITION_LEVEL));
    let compressed = encoder.write_all(end).and_then(|()| encoder.finish());
    compressed.is_ok_and(|compressed| end.len() as f64 / compressed.len() as f64 > REPETITION_RATIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewarded(group: u32, reward: f32, prompt_len: u32, loss_mask: &[u8]) -> Rewarded {
        let mut tokens = vec![1; prompt_len as usize];
        tokens.extend(loss_mask.iter().map(|_| 2));
        let status = if loss_mask.len() > 3 { Status::Truncated } else { Status::Completed };
        let sample = Sample {
            group,
            tokens,
            prompt_len,
            loss_mask: loss_mask.to_vec(),
            status,
            source: format!("s{group}"),
            ..Sample::default()
        };
        Rewarded {
            sample,
            reward: Some(reward),
            parts: BTreeMap::from([("number".to_owned(), f64::from(reward))]),
        }
    }

    fn groups() -> Vec<Vec<Rewarded>> {
        vec![
            vec![rewarded(0, 1.0, 5, &[1, 1, 0]), rewarded(0, 0.0, 5, &[1, 1, 1, 1, 1])],
            vec![rewarded(1, -0.04, 3, &[1]), rewarded(1, -0.04, 3, &[1, 1])],
        ]
    }

    #[test]
    fn numbers_of_a_step_are_those_of_its_samples() {
        let mut row = Row::default();
        let mut groups = groups();
        groups[0][0].sample.kept_lens = vec![2, 0, 5];
        add_step(&mut row, &groups, 2, 1);
        add_pace(&mut row, &groups, Pace { rollout_s: 2.0, num_engines: 2 });
        for (key, expected) in [
            ("rollout/response_len/mean", 10.0 / 4.0),
            ("rollout/response_len/median", 2.0),
            ("rollout/response_len/max", 5.0),
            ("rollout/response_len/min", 1.0),
            ("rollout/truncated_ratio", 0.25),
            ("rollout/top_p_kept_vocab_per_token", 3.5),
            ("rollout/repetition_frac", 0.0),
            ("rollout/zero_std/count_0.0", 1.0),
            ("rollout/zero_std_ratio", 0.5),
            ("rollout/prefix_cache_hit_rate", 6.0 / 16.0),
            ("rollout/reward/number", (1.0 - 0.08) / 4.0),
            ("passrate/pass@1", 0.25),
            ("passrate/pass@2", 0.5),
            ("perf/tokens_per_gpu_per_sec", 11.0 / 4.0),
            ("perf/effective_tokens_per_gpu_per_sec", 10.0 / 4.0),
            ("perf/longest_sample_tokens_per_sec", 2.5),
        ] {
            let got = row.number(key).unwrap_or(f64::NAN);
            assert!((got - expected).abs() < 1e-6, "{key}: {got}, expected {expected}");
        }
        assert!(row.numbers().all(|(key, _)| crate::names::find(key).is_some()), "{row:?}");
        let sources = rewards_by_source(&groups);
        assert_eq!((sources["s0"], sources["s1"]), ((0.0, 1.0), (-0.04, -0.04)));
    }

    #[test]
    fn recorded_samples_have_lengths_and_no_numbers_about_rewards() {
        let mut groups = groups();
        for sample in groups.iter_mut().flatten() {
            (sample.reward, sample.parts) = (None, BTreeMap::new());
        }
        let mut row = Row::default();
        add_step(&mut row, &groups, 0, 0);
        assert_eq!(row.number("rollout/num_samples"), Some(4.0));
        assert_eq!(row.number("rollout/response_len/max"), Some(5.0));
        let is_of_rewards =
            |key: &str| ["zero_std", "reward", "pass", "cache"].iter().any(|word| key.contains(word));
        assert!(row.numbers().all(|(key, _)| !is_of_rewards(key)), "{row:?}");
        assert!(rewards_by_source(&groups).is_empty());
    }

    #[test]
    fn only_long_texts_repeat() {
        let varied: String = (0..3000_u64)
            .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 9_999_991).to_string() + " ")
            .collect();
        assert!(varied.len() > REPETITION_CHARS && !repeats(&varied));
        assert!(repeats(&"ab".repeat(5001)));
        assert!(!repeats(&"ab".repeat(5000)), "exactly the limit is not above it");
        assert!(repeats(&format!("{varied}{}", "é".repeat(REPETITION_CHARS))), "the end alone counts");
        assert!(!repeats(&format!("{}{varied}", "a".repeat(REPETITION_CHARS))));
    }
}
