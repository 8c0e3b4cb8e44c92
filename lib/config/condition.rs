//! `stage.when`: a number of the steps beyond which a stage begins, as words in the configuration.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of a committed step, over the samples that it trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepMetric {
    /// The mean reward.
    RewardMean,
    /// The share of samples whose reward is 1.
    PassRate,
    /// The mean number of response tokens.
    ResponseLen,
    /// The share of samples that were cut off at the longest response.
    Truncated,
}

impl StepMetric {
    const ALL: [Self; 4] = [Self::RewardMean, Self::PassRate, Self::ResponseLen, Self::Truncated];

    /// The name, as in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::RewardMean => "reward_mean",
            Self::PassRate => "pass_rate",
            Self::ResponseLen => "response_len",
            Self::Truncated => "truncated",
        }
    }

    /// The values that it can have where responses have at most `max_response_len` tokens.
    pub fn range(self, max_response_len: u32) -> RangeInclusive<f64> {
        match self {
            Self::RewardMean => f64::MIN..=f64::MAX,
            Self::PassRate | Self::Truncated => 0.0..=1.0,
            Self::ResponseLen => 0.0..=f64::from(max_response_len),
        }
    }
}

/// On which side of a threshold a stage begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// At it or above.
    Min(f64),
    /// At it or below.
    Max(f64),
}

impl Threshold {
    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Self::Min(value) | Self::Max(value) => value,
        }
    }

    /// Whether `value` is at the threshold or beyond.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::Min(min) => value >= min,
            Self::Max(max) => value <= max,
        }
    }

    /// Of two values the one that is nearer to the threshold, or further beyond.
    #[must_use]
    pub fn nearer(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Min(_) => a.max(b),
            Self::Max(_) => a.min(b),
        }
    }
}

/// When a stage begins: a step's metric is beyond a threshold, `num_steps` steps in a row. A stage once reached stays
/// reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Condition {
    /// What is looked at.
    pub metric: StepMetric,
    /// Where.
    pub threshold: Threshold,
    /// Steps in a row.
    pub num_steps: u32,
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?}: expected METRIC:min=A or METRIC:max=A, also with steps=N, where METRIC is one of {}",
                StepMetric::ALL.map(StepMetric::name).join(", ")
            )
        };
        let (name, words) = text.split_once(':').ok_or_else(wrong)?;
        let metric = StepMetric::ALL.into_iter().find(|metric| metric.name() == name).ok_or_else(wrong)?;
        let (mut threshold, mut num_steps) = (None, 1);
        for word in words.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(wrong);
            match key {
                "min" if threshold.is_none() => threshold = Some(Threshold::Min(number()?)),
                "max" if threshold.is_none() => threshold = Some(Threshold::Max(number()?)),
                "steps" => num_steps = value.parse().ok().filter(|steps| *steps > 0).ok_or_else(wrong)?,
                _ => return Err(wrong()),
            }
        }
        Ok(Self { metric, threshold: threshold.ok_or_else(wrong)?, num_steps })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, threshold, num_steps } = self;
        let side = if matches!(threshold, Threshold::Min(_)) { "min" } else { "max" };
        write!(out, "{}:{side}={}", metric.name(), threshold.value())?;
        if *num_steps > 1 { write!(out, " steps={num_steps}") } else { Ok(()) }
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_written_as_they_are_read_and_others_refused() {
        for text in
            ["reward_mean:min=0.6", "response_len:max=200 steps=3", "truncated:max=0.05", "pass_rate:min=1"]
        {
            assert_eq!(text.parse::<Condition>().unwrap().to_string(), text);
        }
        for text in [
            "reward_mean",
            "reward:min=1",
            "pass_rate:steps=3",
            "pass_rate:min=nan",
            "pass_rate:min=0.1 max=0.9",
            "pass_rate:min=0.1 steps=0",
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.starts_with(&format!("{text:?}: expected METRIC:min=A")), "{error}");
        }
    }

    #[test]
    fn thresholds_have_two_sides() {
        let (min, max) = (Threshold::Min(0.5), Threshold::Max(0.5));
        assert!(min.is_met(0.5) && max.is_met(0.5) && !min.is_met(0.4) && max.is_met(0.4));
        assert!(!min.is_met(f64::NAN) && !max.is_met(f64::NAN));
        assert!((min.nearer(0.3, 0.4) - 0.4).abs() < 1e-12 && (max.nearer(0.7, 0.6) - 0.6).abs() < 1e-12);
    }
}
