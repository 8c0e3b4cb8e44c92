//! A sample on its way through a pipe, with what earlier tools found out about it.

use crate::{SAMPLE_FIELDS, Sample};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// A sample with its reward and whatever else travels with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// The sample.
    #[serde(flatten)]
    pub sample: Sample,
    /// The reward, once a tool has computed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f32>,
    /// Fields nobody here knows; they pass through unchanged.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl From<Sample> for Row {
    fn from(sample: Sample) -> Self {
        Self { sample, reward: None, extra: Map::new() }
    }
}

impl Row {
    /// Reads a row from a JSON object.
    pub(crate) fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        // Two passes, because serde's `flatten` cannot keep JSON fields byte for byte.
        let sample = serde_json::from_str(text)?;
        let Rest { reward, extra } = serde_json::from_str(text)?;
        Ok(Self { sample, reward, extra })
    }
}

struct Rest {
    reward: Option<f32>,
    extra: Map<String, Value>,
}

impl<'de> Deserialize<'de> for Rest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RestVisitor;
        impl<'de> Visitor<'de> for RestVisitor {
            type Value = Rest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rest, A::Error> {
                let mut rest = Rest { reward: None, extra: Map::new() };
                while let Some(key) = map.next_key::<String>()? {
                    if key == "reward" {
                        rest.reward = map.next_value()?;
                    } else if SAMPLE_FIELDS.contains(&key.as_str()) {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        rest.extra.insert(key, map.next_value()?);
                    }
                }
                Ok(rest)
            }
        }
        deserializer.deserialize_map(RestVisitor)
    }
}
