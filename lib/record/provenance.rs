//! Where a file of records comes from: written into the Arrow schema's metadata.

use arrow_schema::Metadata;
use std::collections::BTreeMap;

const PREFIX: &str = "slime.";

/// Where a file of records comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The tool that wrote it.
    pub tool: String,
    /// The tool's version.
    pub tool_version: String,
    /// The hash of the resolved configuration.
    pub config_hash: String,
    /// The run's seed.
    pub seed: u64,
    /// The policy version at the time of writing, where one applies.
    pub weight_version: Option<u64>,
    /// Under which distribution `rollout_log_probs` were taken.
    pub log_probs: LogProbSpace,
    /// Anything else worth saying, under names of the writer's choice.
    pub extra: BTreeMap<String, String>,
}

/// The distribution whose log-probabilities a sample carries; always after temperature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogProbSpace {
    /// The whole softmax, before `top_p`, `top_k` and `min_p` cut it.
    #[default]
    BeforeTruncation,
    /// The renormalised distribution after the cuts.
    AfterTruncation,
}

impl LogProbSpace {
    fn as_str(self) -> &'static str {
        match self {
            Self::BeforeTruncation => "before_truncation",
            Self::AfterTruncation => "after_truncation",
        }
    }
}

impl Provenance {
    pub(crate) fn to_metadata(&self) -> Metadata {
        let mut pairs = BTreeMap::from([
            ("tool".to_owned(), self.tool.clone()),
            ("tool_version".to_owned(), self.tool_version.clone()),
            ("config_hash".to_owned(), self.config_hash.clone()),
            ("seed".to_owned(), self.seed.to_string()),
            ("log_probs".to_owned(), self.log_probs.as_str().to_owned()),
        ]);
        if let Some(version) = self.weight_version {
            pairs.insert("weight_version".to_owned(), version.to_string());
        }
        pairs.extend(self.extra.iter().map(|(key, value)| (format!("extra.{key}"), value.clone())));
        pairs.into_iter().map(|(key, value)| (format!("{PREFIX}{key}"), value)).collect()
    }

    /// Foreign files have no such metadata; what is missing stays at its default.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Self {
        let get = |key: &str| metadata.get(&format!("{PREFIX}{key}")).cloned();
        let log_probs = match get("log_probs").as_deref() {
            Some("after_truncation") => LogProbSpace::AfterTruncation,
            _ => LogProbSpace::BeforeTruncation,
        };
        Self {
            tool: get("tool").unwrap_or_default(),
            tool_version: get("tool_version").unwrap_or_default(),
            config_hash: get("config_hash").unwrap_or_default(),
            seed: get("seed").and_then(|text| text.parse().ok()).unwrap_or_default(),
            weight_version: get("weight_version").and_then(|text| text.parse().ok()),
            log_probs,
            extra: metadata
                .iter()
                .filter_map(|(key, value)| {
                    Some((key.strip_prefix("slime.extra.")?.to_owned(), value.clone()))
                })
                .collect(),
        }
    }
}
