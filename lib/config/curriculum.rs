//! `data.curriculum`: which prompts are asked again, by how often they were answered, as words in the configuration.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Groups whose prompts are remembered, about: a manifest of a step says how its prompts did.
const REMEMBERED_GROUPS: u64 = 32_768;
/// Share of draws that go by it when nothing is said: the rest finds out which prompts have become easier or harder.
const SHARE: f64 = 0.9;

/// A window of pass rates that draws prefer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curriculum {
    /// Least share of samples whose reward was 1.
    pub min: f64,
    /// Greatest share.
    pub max: f64,
    /// Share of draws that go by it.
    pub share: f64,
}

impl Curriculum {
    /// Whether a prompt with this pass rate is asked again.
    pub fn contains(&self, pass_rate: f64) -> bool {
        (self.min..=self.max).contains(&pass_rate)
    }

    /// Steps of `num_groups` groups that draws look back to.
    pub fn num_steps(num_groups: u32) -> u64 {
        REMEMBERED_GROUPS.div_ceil(u64::from(num_groups.max(1)))
    }
}

impl FromStr for Curriculum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?}: expected pass_rate:min=A max=B, also with share=C, each from 0 to 1");
        let words = text.strip_prefix("pass_rate:").ok_or_else(wrong)?;
        let mut curriculum = Self { min: 0.0, max: 1.0, share: SHARE };
        for word in words.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            let number: f64 = value.parse().map_err(|_| wrong())?;
            *(match key {
                "min" => &mut curriculum.min,
                "max" => &mut curriculum.max,
                "share" => &mut curriculum.share,
                _ => return Err(wrong()),
            }) = number;
        }
        let Self { min, max, share } = curriculum;
        // Written so that NaN is refused too.
        let is_right = min >= 0.0 && max >= min && max <= 1.0 && share > 0.0 && share <= 1.0;
        if is_right { Ok(curriculum) } else { Err(wrong()) }
    }
}

impl fmt::Display for Curriculum {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "pass_rate:min={} max={} share={}", self.min, self.max, self.share)
    }
}

impl Serialize for Curriculum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Curriculum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_and_others_refused() {
        let curriculum: Curriculum = "pass_rate:min=0.1 max=0.9".parse().unwrap();
        assert_eq!(curriculum.to_string(), "pass_rate:min=0.1 max=0.9 share=0.9");
        assert_eq!(curriculum.to_string().parse(), Ok(curriculum));
        assert!(curriculum.contains(0.1) && curriculum.contains(0.9) && !curriculum.contains(1.0));
        for text in [
            "pass_rate",
            "reward:min=0.1",
            "pass_rate:min=0.9 max=0.1",
            "pass_rate:share=0",
            "pass_rate:max=2",
        ] {
            let error = text.parse::<Curriculum>().unwrap_err();
            assert!(error.starts_with(&format!("{text:?}: expected pass_rate:min=A max=B")), "{error}");
        }
        assert_eq!((Curriculum::num_steps(32), Curriculum::num_steps(100_000)), (1024, 1));
    }
}
