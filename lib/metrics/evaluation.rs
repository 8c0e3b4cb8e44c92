//! The numbers of an evaluation: rewards, pass@k, mean@n, majority@n, lengths, truncation and repetition.

use std::collections::BTreeMap;

use slime_record::{Sample, Status};

use crate::Row;
use crate::pass_rate::add_pass_rates;
use crate::rollout::repeats;

/// What counts of one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// All samples of one prompt have the same.
    pub group: (u64, u64),
    /// What it answers, in a form in which equal answers are equal.
    pub answer: String,
    /// Its reward.
    pub reward: f32,
    /// Response tokens, where they are known.
    pub response_len: Option<u64>,
    /// Whether the length limit ended it, where that is known.
    pub is_truncated: Option<bool>,
    /// Whether its end is only repetition.
    pub repeats: bool,
}

impl Answered {
    /// A sample that answers `answer`.
    pub fn new(sample: &Sample, answer: String, reward: f32) -> Self {
        Self {
            group: (sample.step, u64::from(sample.group)),
            answer,
            reward,
            response_len: Some(sample.response_len() as u64),
            is_truncated: Some(sample.status == Status::Truncated),
            repeats: repeats(&sample.response),
        }
    }
}

/// Adds the numbers of an evaluation. `mean@n` is the mean over prompts of the mean reward of a prompt's samples,
/// `majority@n` that of the rewards of their most frequent answers (of equally frequent ones the first); n is the size of
/// the smallest group. Groups of one sample have neither.
pub fn add_evaluation(row: &mut Row, samples: &[Answered]) {
    row.count("num_samples", samples.len() as u64);
    let mean =
        |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let rewards = samples.iter().map(|sample| f64::from(sample.reward)).collect();
    row.set("reward_mean", mean(rewards).unwrap_or(0.0));
    let lens: Vec<u64> = samples.iter().filter_map(|sample| sample.response_len).collect();
    if let (Some(len), Some(longest)) =
        (mean(lens.iter().map(|len| *len as f64).collect()), lens.iter().max())
    {
        row.set("response_len_mean", len);
        row.count("response_len_max", *longest);
    }
    let share =
        |claims: Vec<bool>| mean(claims.into_iter().map(|claim| f64::from(u8::from(claim))).collect());
    for (key, claims) in [
        ("truncated_ratio", samples.iter().filter_map(|sample| sample.is_truncated).collect()),
        ("repetition_frac", samples.iter().map(|sample| sample.repeats).collect()),
    ] {
        if let Some(share) = share(claims) {
            row.set(key, share);
        }
    }
    let mut groups: BTreeMap<(u64, u64), Vec<&Answered>> = BTreeMap::new();
    for sample in samples {
        groups.entry(sample.group).or_default().push(sample);
    }
    let rewards: Vec<Vec<f32>> =
        groups.values().map(|group| group.iter().map(|sample| sample.reward).collect()).collect();
    add_pass_rates(row, "", &rewards);
    let num = rewards.iter().map(Vec::len).min().unwrap_or(0);
    if num > 1 {
        let of = |group: &Vec<f32>| {
            group.iter().map(|&reward| f64::from(reward)).sum::<f64>() / group.len() as f64
        };
        row.set(format!("mean@{num}"), mean(rewards.iter().map(of).collect()).unwrap_or(0.0));
        let majorities = groups.values().map(|group| f64::from(majority(group))).collect();
        row.set(format!("majority@{num}"), mean(majorities).unwrap_or(0.0));
    }
}

/// The reward of the most frequent answer: the first of its samples speaks for it.
fn majority(group: &[&Answered]) -> f32 {
    let votes = |answer: &str| group.iter().filter(|sample| sample.answer == answer).count();
    let most = group.iter().map(|sample| votes(&sample.answer)).max();
    group.iter().find(|sample| Some(votes(&sample.answer)) == most).map_or(0.0, |sample| sample.reward)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(group: u64, answer: &str, reward: f32) -> Answered {
        Answered {
            group: (0, group),
            answer: answer.to_owned(),
            reward,
            response_len: Some(answer.len() as u64),
            is_truncated: Some(answer.len() > 1),
            repeats: false,
        }
    }

    #[test]
    fn majority_is_the_reward_of_the_most_frequent_answer() {
        let samples = [
            answered(0, "1", 0.0),
            answered(0, "2", 1.0),
            answered(0, "2", 1.0),
            answered(0, "30", 0.0),
            answered(1, "7", 0.0),
            answered(1, "7", 0.0),
            answered(1, "8", 1.0),
            answered(1, "9", 0.0),
        ];
        let mut row = Row::default();
        add_evaluation(&mut row, &samples);
        for (key, expected) in [
            ("num_samples", 8.0),
            ("reward_mean", 3.0 / 8.0),
            ("mean@4", 3.0 / 8.0),
            ("majority@4", 0.5),
            ("pass@4", 1.0),
            ("response_len_mean", 9.0 / 8.0),
            ("response_len_max", 2.0),
            ("truncated_ratio", 1.0 / 8.0),
            ("repetition_frac", 0.0),
        ] {
            let got = row.number(key).unwrap_or(f64::NAN);
            assert!((got - expected).abs() < 1e-9, "{key}: {got}, expected {expected}");
        }
        assert!(row.numbers().all(|(key, _)| crate::names::find(key).is_some()), "{row:?}");
    }

    #[test]
    fn of_equally_frequent_answers_the_first_counts() {
        let group = [answered(0, "1", 0.25), answered(0, "2", 1.0)];
        assert!((majority(&group.iter().collect::<Vec<_>>()) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn nothing_has_a_mean_and_single_samples_no_votes() {
        let mut row = Row::default();
        add_evaluation(&mut row, &[]);
        assert_eq!((row.number("reward_mean"), row.number("response_len_mean")), (Some(0.0), None));
        let mut row = Row::default();
        add_evaluation(&mut row, &[answered(0, "1", 1.0)]);
        assert!(row.numbers().all(|(key, _)| !key.contains('@')), "{row:?}");
    }
}
