//! `rollout.dynamic_filter`: which groups a step trains, as words in the configuration.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One filter of groups; a group has to pass all that are configured.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicFilter {
    /// What it looks at.
    pub rule: FilterRule,
    /// Whether a group it refuses may fill a step that would otherwise have to draw more groups.
    pub is_fallback: bool,
}

/// What a filter looks at.
#[derive(Debug, Clone, PartialEq)]
pub enum FilterRule {
    /// Rewards that differ (DAPO's dynamic sampling, arXiv 2503.14476).
    NonzeroStd,
    /// The share of samples whose reward is 1, bounds included.
    PassRate {
        /// Least share.
        min: f64,
        /// Greatest share.
        max: f64,
    },
    /// The mean number of response tokens, bounds included.
    ResponseLen {
        /// Least mean.
        min: f64,
        /// Greatest mean.
        max: f64,
    },
    /// A program that answers a JSON line about each group.
    Command(String),
}

impl FromStr for DynamicFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, argument) = text.split_once(':').unwrap_or((text, ""));
        if name == "command" {
            let rule = FilterRule::Command(argument.trim().to_owned());
            let is_named = !argument.trim().is_empty();
            return if is_named { Ok(Self { rule, is_fallback: false }) } else { Err(wrong(text)) };
        }
        let (mut is_fallback, mut min, mut max) = (false, 0.0, f64::INFINITY);
        for word in argument.split_whitespace() {
            match word.split_once('=') {
                None if word == "fallback" => is_fallback = true,
                Some((key @ ("min" | "max"), value)) if name != "nonzero_std" => {
                    let number: f64 = value.parse().map_err(|_| wrong(text))?;
                    *(if key == "min" { &mut min } else { &mut max }) = number;
                }
                _ => return Err(wrong(text)),
            }
        }
        // Written so that NaN is refused too.
        if !(min >= 0.0 && max >= min) {
            return Err(format!("{text:?}: min is above max, or below 0"));
        }
        let rule = match name {
            "nonzero_std" => FilterRule::NonzeroStd,
            "pass_rate" => FilterRule::PassRate { min, max },
            "response_len" => FilterRule::ResponseLen { min, max },
            _ => return Err(wrong(text)),
        };
        Ok(Self { rule, is_fallback })
    }
}

fn wrong(text: &str) -> String {
    format!(
        "{text:?}: expected nonzero_std, pass_rate:min=A max=B or response_len:min=A max=B, each also with the word \
         fallback, or command:PROGRAM"
    )
}

impl fmt::Display for DynamicFilter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bounds) = match &self.rule {
            FilterRule::NonzeroStd => ("nonzero_std", None),
            FilterRule::PassRate { min, max } => ("pass_rate", Some((min, max))),
            FilterRule::ResponseLen { min, max } => ("response_len", Some((min, max))),
            FilterRule::Command(program) => return write!(out, "command:{program}"),
        };
        let mut words = Vec::new();
        if let Some((min, max)) = bounds {
            words.extend((*min > 0.0).then(|| format!("min={min}")));
            words.extend(max.is_finite().then(|| format!("max={max}")));
        }
        words.extend(self.is_fallback.then(|| "fallback".to_owned()));
        let colon = if words.is_empty() { "" } else { ":" };
        write!(out, "{name}{colon}{}", words.join(" "))
    }
}

impl Serialize for DynamicFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A list of filters, or the only one as text; `none` is no filter.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DynamicFilter>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    let texts = match Texts::deserialize(deserializer)? {
        Texts::One(text) if text == "none" => Vec::new(),
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_written_as_they_are_read() {
        for text in [
            "nonzero_std",
            "nonzero_std:fallback",
            "pass_rate:min=0.1 max=0.9",
            "pass_rate:max=0.5 fallback",
            "response_len:min=4",
            "command:python3 keep.py --harder",
        ] {
            assert_eq!(text.parse::<DynamicFilter>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_filter_is_named_with_what_would_be() {
        for text in ["zero", "nonzero_std:min=1", "pass_rate:least=1", "command:", "pass_rate:min=x"] {
            let error = text.parse::<DynamicFilter>().unwrap_err();
            assert!(
                error.starts_with(&format!("{text:?}: expected nonzero_std, pass_rate:min=A")),
                "{error}"
            );
        }
        for text in ["pass_rate:min=0.9 max=0.1", "pass_rate:min=nan", "response_len:min=-1"] {
            assert!(text.parse::<DynamicFilter>().unwrap_err().contains("min is above max"), "{text}");
        }
    }

    #[test]
    fn list_takes_one_text_several_or_none() {
        let of = |text: &str| {
            let text = format!("[rollout]\ndynamic_filter = {text}\n");
            crate::parse(&text, "run.toml", &[]).map(|config| config.rollout.dynamic_filter)
        };
        assert_eq!(of("\"none\"").unwrap(), []);
        assert_eq!(of("\"nonzero_std\"").unwrap().len(), 1);
        assert_eq!(of("[\"nonzero_std\", \"pass_rate:max=0.9\"]").unwrap().len(), 2);
        let error = of("\"zero\"").unwrap_err();
        assert!(error.to_string().contains("expected nonzero_std"), "{error}");
        assert_eq!(error.exit_code(), 78);
    }
}
