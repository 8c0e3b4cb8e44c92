//! Says in words whether a run worked, and why: for people who know nothing else about it.

use crate::names::REWARD;
use crate::read_run::Run;
use crate::read_warnings::{WarningGroup, grouped, is_grave, title};
use crate::standing::{Standing, standing};

/// A difference below this is no change, whatever the number of samples.
const SMALL: f64 = 0.02;
/// Standard errors between two means that differ.
const NUM_ERRORS: f64 = 2.0;
/// A last value this far below the best one is worth a word.
const LITTLE: f64 = 0.05;
/// A reward that begins this near to 1 has no room to rise.
const FULL: f64 = 0.95;

/// How it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// It learned.
    Good,
    /// It cannot be told, or it goes on.
    Neutral,
    /// It failed, or it got worse.
    Bad,
}

/// The judgement of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// How it looks.
    pub tone: Tone,
    /// The judgement, such as `The run worked`.
    pub headline: String,
    /// Its reasons: what the reward did, how the run ended, what was warned of.
    pub reasons: String,
}

/// What a reward did over the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The reward in words, such as `held-out reward`.
    pub what: String,
    /// At the beginning and at the end.
    pub from: f64,
    /// At the end.
    pub to: f64,
    /// How much the difference may be chance.
    pub error: f64,
    /// Steps of training between the two values.
    pub num_steps: u64,
    /// How many steps both values are means of; 0 for evaluations, which the curve shows as they are.
    pub num_averaged: usize,
    /// The best evaluation with its version.
    pub best: Option<(u64, f64)>,
}

/// Which way a reward went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Flat,
    Down,
}

impl Change {
    fn way(&self) -> Way {
        let bound = SMALL.max(NUM_ERRORS * self.error);
        match self.to - self.from {
            difference if difference > bound => Way::Up,
            difference if difference < -bound => Way::Down,
            _ => Way::Flat,
        }
    }

    /// Such as `held-out reward rose from 0.13 to 0.80 in 12 steps`.
    pub fn words(&self) -> String {
        let num = self.num_steps;
        let mut words = format!("{} in {num} step{}", self.direction(), if num == 1 { "" } else { "s" });
        if self.num_averaged > 1 {
            words.extend([format!(" ({})", self.averaged())]);
        }
        if let Some((version, best)) = self.best.filter(|(_, best)| best - self.to > LITTLE) {
            words.extend([format!(" (best {best:.2} at version {version}, the last is lower)")]);
        }
        words
    }

    /// What both values are, where they are no points of the curve.
    pub fn averaged(&self) -> String {
        match self.num_averaged {
            0 | 1 => String::new(),
            2 => "means of the first and the last two steps".to_owned(),
            num => format!("means of the first and the last {num} steps"),
        }
    }

    fn direction(&self) -> String {
        let Self { what, from, to, .. } = self;
        match self.way() {
            Way::Up => format!("{what} rose from {from:.2} to {to:.2}"),
            Way::Down => format!("{what} fell from {from:.2} to {to:.2}"),
            Way::Flat if (from - to).abs() < 0.005 => format!("{what} stayed at {to:.2}"),
            Way::Flat => format!("{what} went from {from:.2} to {to:.2}, which may be chance"),
        }
    }
}

/// The changes that count, the most telling first: evaluations on unseen questions, others, the training reward.
pub fn changes(run: &Run) -> Vec<Change> {
    let mut sets = run.metrics.sets();
    sets.sort_by_key(|set| (!is_held_out(set), *set));
    let mut changes: Vec<Change> = sets.iter().filter_map(|set| eval_change(run, set)).collect();
    changes.extend(training_change(run));
    changes
}

fn is_held_out(set: &str) -> bool {
    ["held", "test", "valid", "unseen"].iter().any(|word| set.contains(word))
}

fn eval_change(run: &Run, set: &str) -> Option<Change> {
    let series = run.metrics.eval_series(set, "reward_mean");
    let ((first, from), (last, to)) = (*series.first()?, *series.last()?);
    if first == last {
        return None;
    }
    let num = run.metrics.eval_series(set, "num_samples").last().map_or(0.0, |(_, num)| *num);
    // Of rewards between 0 and 1; the variance of a share is the largest they can have.
    let variance = |mean: f64| if (0.0..=1.0).contains(&mean) { mean * (1.0 - mean) } else { 0.0 };
    let error = if num > 0.0 { ((variance(from) + variance(to)) / num).sqrt() } else { 0.0 };
    let best = series.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    Some(Change {
        what: format!("{} reward", set.replace("held_out", "held-out").replace('_', " ")),
        from,
        to,
        error,
        num_steps: last - first,
        num_averaged: 0,
        best,
    })
}

/// The mean of the first against that of the last tenth of the steps.
fn training_change(run: &Run) -> Option<Change> {
    let series = run.metrics.series(REWARD);
    let values: Vec<f64> = series.iter().map(|(_, reward)| *reward).collect();
    if values.len() < 2 {
        return None;
    }
    let num = values.len().div_ceil(10);
    let (first, last) = (&values[..num], &values[values.len() - num..]);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    // Second differences are free of a steady rise, and have six times the variance of a step's noise.
    let second = values.windows(3).map(|three| (three[0] - 2.0 * three[1] + three[2]).powi(2)).sum::<f64>();
    let variance = second / values.len().saturating_sub(2).max(1) as f64 / 6.0;
    let error = (2.0 * variance / num as f64).sqrt();
    Some(Change {
        what: "training reward".to_owned(),
        from: mean(first),
        to: mean(last),
        error,
        num_steps: series.last()?.0 - series.first()?.0,
        num_averaged: num,
        best: None,
    })
}

/// Judges a run by its most telling reward, its end and its warnings.
pub fn judge(run: &Run) -> Verdict {
    let changes = changes(run);
    let (ending, state) = ending(run);
    let kinds = grouped(&run.warnings);
    let mut kinds: Vec<(WarningGroup, Standing)> = kinds
        .into_iter()
        .map(|group| {
            let standing = standing(&group, &run.metrics);
            (group, standing)
        })
        .collect();
    let is_over = |(_, standing): &(WarningGroup, Standing)| matches!(standing, Standing::Over(_));
    kinds.sort_by_key(is_over);
    let has_grave = kinds.iter().any(|kind| is_grave(&kind.0.kind) && !is_over(kind));
    let way = changes.first().map(Change::way);
    let is_full = changes.first().is_some_and(|change| change.from >= FULL && change.to >= FULL);
    let (tone, headline) = match (state, way) {
        (State::Failed, Some(Way::Up)) => (Tone::Bad, "The run learned, then failed"),
        (State::Failed, _) => (Tone::Bad, "The run failed"),
        (State::Done, Some(Way::Up)) if has_grave => {
            (Tone::Neutral, "The run learned, but look at its warnings")
        }
        (State::Done, Some(Way::Up)) => (Tone::Good, "The run worked"),
        (State::Done, Some(Way::Flat)) if is_full => (Tone::Neutral, "The run had nothing left to learn"),
        (State::Done, Some(Way::Flat)) => (Tone::Neutral, "The run did not learn"),
        (State::Done, Some(Way::Down)) => (Tone::Bad, "The run made the policy worse"),
        (State::Done, None) => (Tone::Neutral, "The run finished without telling its reward"),
        (State::Open, Some(Way::Up)) => (Tone::Good, "The run is learning so far"),
        (State::Open, Some(Way::Down)) => (Tone::Bad, "The run is getting worse so far"),
        (State::Open, Some(Way::Flat)) => (Tone::Neutral, "The run has not learned yet"),
        (State::Open, None) => (Tone::Neutral, "The run has only begun"),
    };
    let mut reasons: Vec<String> = changes.iter().map(Change::words).collect();
    if reasons.is_empty() {
        let num = run.metrics.num_trained().max(run.metrics.steps.len() as u64);
        reasons.push(format!("{num} step{} so far", if num == 1 { "" } else { "s" }));
    }
    reasons.push(ending);
    reasons.push(if kinds.is_empty() {
        "no warnings".to_owned()
    } else {
        let words: Vec<String> = kinds.iter().map(|(group, standing)| warned(group, *standing)).collect();
        format!("warnings: {}", words.join(", "))
    });
    Verdict { tone, headline: headline.to_owned(), reasons: reasons.join("; ") }
}

/// Such as `many answers are cut off (over since step 7)`.
fn warned(group: &WarningGroup, standing: Standing) -> String {
    let title = title(&group.kind).to_lowercase();
    match standing.words() {
        words if words.is_empty() => title,
        words => format!("{title} ({words})"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Done,
    Failed,
    Open,
}

/// How it ended, in words.
fn ending(run: &Run) -> (String, State) {
    let of = match run.num_steps() {
        Some(steps) => format!(" after {} of {steps} steps", run.metrics.num_trained()),
        None => String::new(),
    };
    let failure = run.summary.attempts.last().and_then(|(attempt, _)| attempt.failures.first());
    match run.metrics.outcome.as_str() {
        "done" => ("finished".to_owned(), State::Done),
        "failed" => match failure {
            Some(failed) => {
                let why = failed.message.lines().next().unwrap_or_default();
                (format!("failed{of}: {}: {why}", failed.role), State::Failed)
            }
            None => (format!("failed{of}"), State::Failed),
        },
        "drained" => (format!("stopped between steps{of}, to go on when started again"), State::Open),
        "stopped" => (format!("stopped on wish{of}"), State::Open),
        _ => (format!("not finished{of}"), State::Open),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_run::read_run;
    use std::fs;

    fn run(evals: &[(u64, f64)], rewards: &[f64], outcome: Option<&str>) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("metrics");
        fs::create_dir(&metrics).unwrap();
        fs::create_dir(folder.path().join("attempt-0")).unwrap();
        if let Some(outcome) = outcome {
            fs::write(folder.path().join("attempt-0/outcome"), outcome).unwrap();
        }
        let step = |(at, reward): (usize, &f64)| {
            format!("{{\"step\":{at},\"train/loss\":0,\"rollout/raw_reward\":{reward}}}\n")
        };
        fs::write(metrics.join("train.jsonl"), rewards.iter().enumerate().map(step).collect::<String>())
            .unwrap();
        let eval = |(version, reward): &(u64, f64)| {
            format!(
                "{{\"version\":{version},\"set\":\"held_out\",\"reward_mean\":{reward},\"num_samples\":100}}\n"
            )
        };
        fs::write(metrics.join("rollout.jsonl"), evals.iter().map(eval).collect::<String>()).unwrap();
        judge(&read_run(folder.path().to_str().unwrap()).unwrap())
    }

    #[test]
    fn finished_run_with_a_risen_held_out_reward_worked() {
        let verdict = run(&[(0, 0.13), (12, 0.8)], &[0.1; 12], Some("done"));
        assert_eq!(verdict.headline, "The run worked");
        assert_eq!(verdict.tone, Tone::Good);
        assert_eq!(
            verdict.reasons,
            "held-out reward rose from 0.13 to 0.80 in 12 steps; training reward stayed at 0.10 in 11 steps \
             (means of the first and the last two steps); finished; no warnings"
        );
    }

    #[test]
    fn steps_are_those_between_the_evaluations_and_a_better_one_before_is_named() {
        let open = run(&[(0, 0.13), (4, 0.9)], &[0.1; 7], None);
        assert!(open.reasons.starts_with("held-out reward rose from 0.13 to 0.90 in 4 steps; "), "{open:?}");
        let lower = run(&[(0, 0.13), (4, 1.0), (8, 1.0), (12, 0.8)], &[], Some("done"));
        let said = "rose from 0.13 to 0.80 in 12 steps (best 1.00 at version 4, the last is lower)";
        assert!(lower.reasons.contains(said), "{lower:?}");
        assert!(!run(&[(0, 0.1), (4, 0.83), (8, 0.8)], &[], None).reasons.contains("best"));
        let training = run(&[], &[0.2, 0.5, 0.9], None);
        assert!(
            training.reasons.starts_with("training reward rose from 0.20 to 0.90 in 2 steps; "),
            "{training:?}"
        );
    }

    #[test]
    fn grave_warning_that_is_over_does_not_spoil_the_headline() {
        let judged = |lengths: &[f64]| {
            let folder = tempfile::tempdir().unwrap();
            let metrics = folder.path().join("metrics");
            fs::create_dir_all(folder.path().join("control")).unwrap();
            fs::write(folder.path().join("control/done"), "").unwrap();
            fs::create_dir(&metrics).unwrap();
            let row = |(step, len): (usize, &f64)| {
                let reward = step as f64 / 4.0;
                format!(
                    "{{\"step\":{step},\"train/loss\":0,\"rollout/raw_reward\":{reward},\
                     \"rollout/response_lengths\":{len}}}\n"
                )
            };
            let rows: String = lengths.iter().enumerate().map(row).collect();
            fs::write(metrics.join("train.jsonl"), rows).unwrap();
            let warning = "{\"step\":1,\"kind\":\"response_len_collapse\",\"value\":0.8,\"threshold\":0.7,\
                           \"message\":\"shorter\"}\n";
            fs::write(metrics.join("warnings.jsonl"), warning).unwrap();
            judge(&read_run(folder.path().to_str().unwrap()).unwrap())
        };
        let still = judged(&[100.0, 20.0, 20.0, 20.0]);
        assert_eq!(still.headline, "The run learned, but look at its warnings");
        assert!(still.reasons.ends_with("answers have become much shorter (still so)"), "{still:?}");
        let over = judged(&[100.0, 20.0, 60.0, 90.0]);
        assert_eq!(over.headline, "The run worked");
        assert!(over.reasons.ends_with("answers have become much shorter (over since step 2)"), "{over:?}");
    }

    #[test]
    fn chance_is_no_learning_and_failures_are_failures() {
        let chance = run(&[(0, 0.5), (12, 0.54)], &[], Some("done"));
        assert_eq!((chance.headline.as_str(), chance.tone), ("The run did not learn", Tone::Neutral));
        assert!(chance.reasons.contains("which may be chance"), "{}", chance.reasons);
        assert_eq!(run(&[(0, 0.5), (12, 0.1)], &[], Some("done")).tone, Tone::Bad);
        assert_eq!(
            run(&[(0, 0.99), (2, 0.99)], &[], Some("done")).headline,
            "The run had nothing left to learn"
        );
        let failed = run(&[(0, 0.1), (12, 0.9)], &[], Some("failed"));
        assert_eq!(failed.headline, "The run learned, then failed");
        assert_eq!(run(&[], &[0.1, 0.5, 0.9], None).headline, "The run is learning so far");
        assert_eq!(run(&[], &[], None).headline, "The run has only begun");
    }
}
