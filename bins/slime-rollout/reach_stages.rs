//! Stages that a metric begins: what a committed step says to them.

use slime_config::{Condition, RunConfig, StepMetric};
use slime_record::{GroupEntry, Stages};

/// The stages after `step` has trained `groups`. One that begins does so for the first step of which nobody can have
/// drawn: steps up to `run.max_staleness` behind the next may be open.
pub fn advance(config: &RunConfig, before: &Stages, step: u64, groups: &[GroupEntry]) -> Stages {
    let Some((number, stage, condition)) = config.awaited_stage(step, &before.begun) else {
        return Stages { begun: before.begun.clone(), ..Stages::default() };
    };
    let value = metric(condition.metric, groups);
    let num_holding = match value {
        Some(value) if condition.threshold.is_met(value) => before.num_holding + 1,
        _ => 0,
    };
    let nearest = match (before.nearest, value) {
        (Some(a), Some(b)) => Some(condition.threshold.nearer(a, b)),
        (known, value) => known.or(value),
    };
    let mut stages = Stages { begun: before.begun.clone(), num_holding, nearest };
    if num_holding >= condition.num_steps {
        let first = stage.start.max(step + 1 + config.run.max_staleness);
        stages = Stages { begun: stages.begun, ..Stages::default() };
        stages.begun.insert(number, first);
    }
    stages
}

/// The mean over samples; none where they have no such number.
fn metric(metric: StepMetric, groups: &[GroupEntry]) -> Option<f64> {
    let num: usize = groups.iter().map(|group| group.samples.len()).sum();
    let of_samples = |of: fn(&GroupEntry) -> Option<f64>| -> Option<f64> {
        groups.iter().map(|group| Some(of(group)? * group.samples.len() as f64)).sum()
    };
    let sum = match metric {
        StepMetric::RewardMean => of_samples(|group| group.scores.reward_mean),
        StepMetric::PassRate => of_samples(|group| Some(group.scores.pass_rate)),
        StepMetric::Truncated => of_samples(|group| Some(group.scores.truncated)),
        StepMetric::ResponseLen => Some(groups.iter().map(GroupEntry::num_tokens).sum::<u64>() as f64),
    };
    sum.map(|sum| sum / num.max(1) as f64)
}

/// What there is to say about stages when a step has been committed: the one that begins.
pub fn told(config: &RunConfig, before: &Stages, after: &Stages) -> Option<String> {
    let (number, first) = after.begun.iter().find(|(number, _)| !before.begun.contains_key(number))?;
    let condition: Condition = config.stage.get(*number as usize)?.when?;
    Some(format!("stage[{number}] ({condition}) begins with step {first}"))
}

#[cfg(test)]
mod tests {
    use slime_record::{SampleEntry, Scores, SegmentRef, VersionRun};

    use super::*;

    fn group(pass_rate: f64, response_lens: &[u32]) -> GroupEntry {
        let sample = |len: &u32| SampleEntry {
            index: 0,
            part: 0,
            tokens_hash: 0,
            response_len: *len,
            num_trained: *len,
            num_masked: 0,
            oldest_version: 0,
            versions: vec![VersionRun { version: 0, len: *len }],
        };
        GroupEntry {
            step: 0,
            group: 0,
            attempt: 0,
            cursor: 0,
            chosen: None,
            prompt_id: String::new(),
            segment: SegmentRef { path: String::new(), num_bytes: 0, checksum: 0, epoch: 0 },
            first_row: 0,
            columns: Vec::new(),
            samples: response_lens.iter().map(sample).collect(),
            priority: 0.0,
            stratum: String::new(),
            spare: None,
            num_uses: 0,
            scores: Scores { reward_mean: None, pass_rate, truncated: 0.25 },
        }
    }

    #[test]
    fn metrics_are_means_over_samples() {
        let groups = [group(1.0, &[1, 2, 3]), group(0.5, &[6])];
        let of = |name| metric(name, &groups);
        assert_eq!(of(StepMetric::PassRate), Some(3.5 / 4.0));
        assert_eq!(of(StepMetric::ResponseLen), Some(3.0));
        assert_eq!((of(StepMetric::Truncated), of(StepMetric::RewardMean)), (Some(0.25), None));
    }

    #[test]
    fn a_stage_begins_once_its_metric_has_held_and_stays_begun() {
        let text = "[run]\nmax_staleness = 1\n[[stage]]\nwhen = \"pass_rate:min=0.5 steps=2\"\nmax_response_len = 9\n\
                    [[stage]]\nwhen = \"response_len:max=4\"\nmax_response_len = 8\n";
        let config = slime_config::parse(text, "run.toml", &[]).unwrap();
        let mut stages = Stages::default();
        let mut seen = Vec::new();
        for (step, (pass_rate, len)) in (0..).zip([
            (0.6, 9),
            (0.4, 9),
            (0.7, 9),
            (0.5, 3),
            (0.1, 3),
            (0.1, 9),
            (0.1, 6),
            (0.1, 4),
            (0.9, 9),
        ]) {
            let after = advance(&config, &stages, step, &[group(pass_rate, &[len])]);
            seen.extend(told(&config, &stages, &after));
            stages = after;
            if step == 2 {
                assert_eq!(
                    (stages.num_holding, stages.nearest),
                    (1, Some(0.7)),
                    "the step before did not hold"
                );
            }
        }
        assert_eq!(
            seen,
            [
                "stage[0] (pass_rate:min=0.5 steps=2) begins with step 5",
                "stage[1] (response_len:max=4) begins with step 9"
            ],
            "the second one goes by the steps of the first"
        );
        assert_eq!((stages.num_holding, stages.nearest), (0, None));
    }
}
