//! `[[stage]]`: settings that change at a step of the run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dynamic_filter::{self, DynamicFilter};
use crate::error::{Error, Result};
use crate::load::RunConfig;

/// One stage: from its first step on it stands above `[data]` and `[rollout]`, until the next one begins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stage {
    /// The first step whose prompts are drawn by it.
    pub start: u64,
    /// The environment's difficulty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difficulty: Option<u64>,
    /// Shares of sources by their name; sources that are left out are not drawn.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
    /// Longest response in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_response_len: Option<u32>,
    /// Which groups are accepted, as in `[rollout]`.
    #[serde(deserialize_with = "some_filters", skip_serializing_if = "Option::is_none")]
    pub dynamic_filter: Option<Vec<DynamicFilter>>,
}

fn some_filters<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Vec<DynamicFilter>>, D::Error> {
    dynamic_filter::list(deserializer).map(Some)
}

impl RunConfig {
    /// The settings of a step: those of its stage above the others.
    #[must_use]
    pub fn at_step(&self, step: u64) -> Self {
        let mut config = self.clone();
        config.stage.clear();
        let Some(stage) = self.stage.iter().rev().find(|stage| stage.start <= step) else { return config };
        config.data.difficulty = stage.difficulty.unwrap_or(config.data.difficulty);
        if !stage.weights.is_empty() {
            config.data.source.retain(|source| stage.weights.contains_key(source.name()));
            for source in &mut config.data.source {
                source.weight = stage.weights.get(source.name()).copied().unwrap_or(source.weight);
            }
        }
        let rollout = &mut config.rollout;
        rollout.max_response_len = stage.max_response_len.unwrap_or(rollout.max_response_len);
        if let Some(filters) = &stage.dynamic_filter {
            rollout.dynamic_filter.clone_from(filters);
        }
        config
    }

    /// The first step of every stage, the settings before the first of them included.
    pub fn stage_starts(&self) -> Vec<u64> {
        let mut starts: Vec<u64> =
            std::iter::once(0).chain(self.stage.iter().map(|stage| stage.start)).collect();
        starts.dedup();
        starts
    }

    /// The longest response that any stage allows.
    pub fn longest_response(&self) -> u32 {
        let of_stages = self.stage.iter().filter_map(|stage| stage.max_response_len);
        of_stages.chain([self.rollout.max_response_len]).max().unwrap_or(self.rollout.max_response_len)
    }

    /// Whether a filter judges groups in any stage.
    pub fn has_filter(&self) -> bool {
        let of_stages = self.stage.iter().filter_map(|stage| stage.dynamic_filter.as_ref());
        of_stages.chain([&self.rollout.dynamic_filter]).any(|filters| !filters.is_empty())
    }
}

/// Stages that begin one after the other, within the run, and change something that there is.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let mut before = None;
    for (i, stage) in config.stage.iter().enumerate() {
        let key = |key: &str| format!("stage[{i}].{key}");
        if let Some(before) = before.filter(|before| stage.start <= *before) {
            return Err(Error::value(
                &key("start"),
                &format!("above {before}, where the stage before begins"),
                stage.start,
            ));
        }
        before = Some(stage.start);
        if let Some(num_steps) = config.run.num_steps.filter(|num_steps| stage.start >= *num_steps) {
            return Err(Error::Conflict(format!(
                "{} {} is never reached: the run has {num_steps} steps (run.num_steps)\nhint: begin it earlier, or drop it",
                key("start"),
                stage.start
            )));
        }
        if *stage == (Stage { start: stage.start, ..Stage::default() }) {
            return Err(Error::Conflict(format!(
                "stage[{i}] changes nothing\nhint: difficulty, weights, max_response_len or dynamic_filter"
            )));
        }
        if stage.difficulty.is_some() && config.data.environment.is_none() {
            return Err(Error::Conflict(format!("{}: data.environment is not set", key("difficulty"))));
        }
        if stage.difficulty == Some(0) {
            return Err(Error::value(&key("difficulty"), "at least 1", 0));
        }
        if stage.max_response_len == Some(0) {
            return Err(Error::value(&key("max_response_len"), "at least 1", 0));
        }
        for (name, weight) in &stage.weights {
            let known: Vec<&str> = config.data.source.iter().map(crate::DataSource::name).collect();
            if !known.contains(&name.as_str()) {
                return Err(Error::Conflict(format!(
                    "{}.{name}: no [[data.source]] has that name\nhint: there are {}",
                    key("weights"),
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                )));
            }
            // Written so that NaN is refused too.
            if !(*weight > 0.0 && weight.is_finite()) {
                return Err(Error::value(&format!("{}.{name}", key("weights")), "a number above 0", weight));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::load::parse;

    const STAGES: &str = "[run]\nnum_steps = 100\n[data]\nenvironment = \"arithmetic\"\ndifficulty = 10\n\
                          [[stage]]\nstart = 20\ndifficulty = 50\n\
                          [[stage]]\nstart = 60\nmax_response_len = 2048\ndynamic_filter = \"nonzero_std\"\n";

    #[test]
    fn a_step_has_the_settings_of_its_stage() {
        let config = parse(STAGES, "run.toml", &[]).unwrap();
        let at = |step| {
            let config = config.at_step(step);
            (config.data.difficulty, config.rollout.max_response_len, config.rollout.dynamic_filter.len())
        };
        assert_eq!([at(0), at(19)], [(10, 1024, 0); 2]);
        assert_eq!([at(20), at(59)], [(50, 1024, 0); 2]);
        assert_eq!(
            at(60),
            (10, 2048, 1),
            "a stage stands above [data] and [rollout], not above the one before"
        );
        assert_eq!((config.longest_response(), config.has_filter()), (2048, true));
        assert_eq!(config.stage_starts(), [0, 20, 60]);
        let again = parse(&config.to_toml().unwrap(), "run.toml", &[]).unwrap();
        assert_eq!(again.stage, config.stage);
    }

    #[test]
    fn weights_choose_among_the_sources() {
        let sources = "[[data.source]]\npath = \"a.jsonl\"\nweight = 1.0\n[[data.source]]\npath = \"b.jsonl\"\nweight = 1.0\n";
        let text = format!("{sources}[[stage]]\nstart = 5\nweights = {{ \"b.jsonl\" = 3.0 }}\n");
        let config = parse(&text, "run.toml", &[]).unwrap();
        assert_eq!(config.at_step(4).data.source.len(), 2);
        let later = config.at_step(5).data.source;
        assert_eq!((later.len(), later[0].name()), (1, "b.jsonl"));
        assert!((later[0].weight - 3.0).abs() < 1e-12);
    }

    #[test]
    fn stages_that_cannot_be_are_named() {
        let refusal = |text: &str| parse(text, "run.toml", &[]).unwrap_err().to_string();
        let late = STAGES.replace("start = 60", "start = 100");
        assert!(refusal(&late).starts_with("stage[1].start 100 is never reached: the run has 100 steps"));
        let disordered = STAGES.replace("start = 60", "start = 20");
        assert!(refusal(&disordered).contains("stage[1].start"), "{}", refusal(&disordered));
        assert!(refusal("[[stage]]\nstart = 3\n").contains("stage[0] changes nothing"));
        assert!(refusal("[[stage]]\nstart = 3\ndifficulty = 4\n").contains("data.environment is not set"));
        let unknown = "[[stage]]\nstart = 3\nweights = { a = 1.0 }\n";
        assert!(refusal(unknown).contains("stage[0].weights.a: no [[data.source]] has that name"));
    }
}
