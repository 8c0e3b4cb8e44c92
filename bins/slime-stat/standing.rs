//! Whether what was warned of is still so, as far as the numbers of later steps tell.

use crate::read_metrics::Metrics;
use crate::read_warnings::WarningGroup;

/// Points that the level of a share is averaged over, as the rule that warned does.
const LEVEL_POINTS: usize = 3;

/// How a warning stands at the newest step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The number is on the wrong side of its threshold.
    Still,
    /// The number is back on the right side since this step.
    Over(u64),
    /// No series tells.
    Untold,
}

impl Standing {
    /// Such as `over since step 7`; nothing where it is not told.
    pub fn words(self) -> String {
        match self {
            Self::Still => "still so".to_owned(),
            Self::Over(step) => format!("over since step {step}"),
            Self::Untold => String::new(),
        }
    }
}

/// How the newest warning of a kind stands. The thresholds are those of `slime_metrics::rules`, with what the number
/// was compared with when it was warned of.
pub fn standing(group: &WarningGroup, metrics: &Metrics) -> Standing {
    let warning = &group.newest;
    let (Some(value), Some(threshold)) = (warning.value, warning.threshold) else { return Standing::Untold };
    match group.kind.as_str() {
        "entropy_collapse" => {
            let names = ["rollout/entropy", "train/entropy_loss"];
            let series = names.map(|name| metrics.series(name)).into_iter().find(|series| !series.is_empty());
            fallen(&series.unwrap_or_default(), warning.step, value, threshold)
        }
        "response_len_collapse" => {
            fallen(&metrics.series("rollout/response_lengths"), warning.step, value, threshold)
        }
        "equal_rewards" => level(&metrics.series("rollout/zero_std_ratio"), warning.step, threshold),
        "truncation" => level(&metrics.series("rollout/truncated"), warning.step, threshold),
        "mismatch_rise" => {
            let series = metrics.series("train/train_rollout_logprob_abs_diff");
            let Some(then) = at(&series, warning.step).filter(|_| value > 0.0) else {
                return Standing::Untold;
            };
            let bound = then / value * threshold;
            since(series.iter().map(|(step, now)| (*step, *now >= bound)), warning.step)
        }
        "not_finite" => {
            let names: Vec<&str> =
                warning.message.trim_start_matches("not finite: ").split(", ").map(str::trim).collect();
            let is_missing = |numbers: &crate::read_metrics::Numbers| {
                names.iter().any(|name| crate::names::number(numbers, name).is_none())
            };
            // Numbers that are not finite are no numbers in the files.
            let trained = metrics.steps.iter().filter(|(_, numbers)| crate::names::is_trained(numbers));
            since(trained.map(|(step, numbers)| (*step, is_missing(numbers))), warning.step)
        }
        _ => Standing::Untold,
    }
}

fn at(series: &[(u64, f64)], step: u64) -> Option<f64> {
    series.iter().find(|(known, _)| *known == step).map(|(_, value)| *value)
}

/// A number that fell by the share `value` of what it was, more than `threshold`.
fn fallen(series: &[(u64, f64)], step: u64, value: f64, threshold: f64) -> Standing {
    let Some(then) = at(series, step).filter(|_| value < 1.0) else { return Standing::Untold };
    let bound = then / (1.0 - value) * (1.0 - threshold);
    since(series.iter().map(|(step, now)| (*step, *now <= bound)), step)
}

/// A share whose mean over some points is above `threshold`.
fn level(series: &[(u64, f64)], step: u64, threshold: f64) -> Standing {
    let is_above = |(at, (step, _)): (usize, &(u64, f64))| {
        let last = &series[(at + 1).saturating_sub(LEVEL_POINTS)..=at];
        let mean = last.iter().map(|(_, value)| value).sum::<f64>() / last.len() as f64;
        (*step, mean >= threshold)
    };
    since(series.iter().enumerate().map(is_above), step)
}

/// The first step behind the last wrong one, from the warning's step on, which is wrong itself.
fn since(points: impl Iterator<Item = (u64, bool)>, step: u64) -> Standing {
    let mut standing = Standing::Untold;
    for (at, is_wrong) in points.filter(|(at, _)| *at >= step) {
        standing = match standing {
            _ if is_wrong || at == step => Standing::Still,
            Standing::Over(since) => Standing::Over(since),
            Standing::Still | Standing::Untold => Standing::Over(at),
        };
    }
    standing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_warnings::Warning;

    fn of(kind: &str, step: u64, value: f64, threshold: f64, name: &str, values: &[f64]) -> Standing {
        let mut metrics = Metrics::default();
        for (step, number) in (0..).zip(values) {
            let row = serde_json::json!({"train/loss": 0, name: number});
            metrics.steps.insert(step, row.as_object().unwrap().clone());
        }
        let (value, threshold) = (Some(value), Some(threshold));
        let message = format!("not finite: {name}");
        let newest = Warning { step, kind: kind.to_owned(), value, threshold, message, ..Warning::default() };
        standing(&WarningGroup { kind: kind.to_owned(), count: 1, steps: (step, step), newest }, &metrics)
    }

    #[test]
    fn warning_is_over_when_its_number_is_back() {
        let truncation = |values: &[f64]| of("truncation", 2, 0.6, 0.5, "rollout/truncated", values);
        assert_eq!(truncation(&[0.6, 0.6, 0.6, 0.5, 0.4, 0.1]), Standing::Over(5));
        assert_eq!(truncation(&[0.6, 0.6, 0.6, 0.1, 0.1, 0.9, 0.9]), Standing::Still);
        assert_eq!(truncation(&[0.6, 0.6, 0.6]), Standing::Still);
        assert_eq!(truncation(&[]), Standing::Untold);
        // From 2.0 to 0.2 is 90 % where 80 % is too much: 0.4 is the bound, however long ago 2.0 was.
        let entropy = |values: &[f64]| of("entropy_collapse", 1, 0.9, 0.8, "train/entropy_loss", values);
        assert_eq!(
            entropy(&[2.0, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]),
            Standing::Still
        );
        assert_eq!(entropy(&[2.0, 0.2, 0.3, 0.5]), Standing::Over(3));
        let name = "train/train_rollout_logprob_abs_diff";
        assert_eq!(of("mismatch_rise", 1, 4.0, 3.0, name, &[0.1, 0.4, 0.35, 0.29]), Standing::Over(3));
        assert_eq!(of("reward_jump", 1, 4.0, 3.0, name, &[0.1, 0.4]), Standing::Untold);
        let finite = |values: &[f64]| of("not_finite", 1, 1.0, 1.0, "train/grad_norm", values);
        assert_eq!(finite(&[0.1, f64::NAN, f64::NAN]), Standing::Still);
        assert_eq!(finite(&[0.1, f64::NAN, 0.1]), Standing::Over(2));
    }
}
