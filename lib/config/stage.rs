//! `[[stage]]`: settings that change at a step of the run, or once a metric has come far enough.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::dynamic_filter::{self, DynamicFilter};
use crate::load::RunConfig;

/// One stage: from its first step on it stands above `[data]` and `[rollout]`, until the next one begins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stage {
    /// The first step whose prompts are drawn by it; with `when` no earlier one is.
    pub start: u64,
    /// `METRIC:min=A` or `METRIC:max=A`, with `steps=N` for as many steps in a row: it begins once a step of the stage before
    /// is there, `run.max_staleness` steps behind the next. METRIC is `reward_mean`, `pass_rate`, `response_len` or
    /// `truncated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// The environment's difficulty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difficulty: Option<u64>,
    /// Shares of sources by their name; sources that are left out are not drawn.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
    /// Samples of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_samples_per_prompt: Option<u32>,
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
    /// The number of the stage of a step, where `begun` has the first steps of those that a metric begins; none before the
    /// first.
    pub fn stage_at(&self, step: u64, begun: &BTreeMap<u32, u64>) -> Option<usize> {
        let first = |(number, stage): (usize, &Stage)| match stage.when {
            None => Some(stage.start),
            Some(_) => begun.get(&(number as u32)).copied(),
        };
        let has_begun = |entry: &(usize, &Stage)| first(*entry).is_some_and(|first| first <= step);
        self.stage.iter().enumerate().filter(has_begun).map(|(number, _)| number).next_back()
    }

    /// The stage that a step's metric may begin: the one behind the step's own, unless it has begun.
    pub fn awaited_stage(&self, step: u64, begun: &BTreeMap<u32, u64>) -> Option<(u32, &Stage, Condition)> {
        let number = self.stage_at(step, begun).map_or(0, |stage| stage + 1);
        let stage = self.stage.get(number)?;
        let number = number as u32;
        stage.when.filter(|_| !begun.contains_key(&number)).map(|condition| (number, stage, condition))
    }

    /// The settings of a stage above the others; of no stage the others alone.
    #[must_use]
    pub fn in_stage(&self, number: Option<usize>) -> Self {
        let mut config = self.clone();
        config.stage.clear();
        let Some(stage) = number.and_then(|number| self.stage.get(number)) else { return config };
        config.data.difficulty = stage.difficulty.unwrap_or(config.data.difficulty);
        if !stage.weights.is_empty() {
            config.data.source.retain(|source| stage.weights.contains_key(source.name()));
            for source in &mut config.data.source {
                source.weight = stage.weights.get(source.name()).copied().unwrap_or(source.weight);
            }
        }
        let rollout = &mut config.rollout;
        rollout.max_response_len = stage.max_response_len.unwrap_or(rollout.max_response_len);
        if let Some(samples) = stage.n_samples_per_prompt {
            rollout.n_samples_per_prompt = Some(samples);
            // The samples of an optimizer step follow.
            config.train.global_batch_size = None;
        }
        if let Some(filters) = &stage.dynamic_filter {
            rollout.dynamic_filter.clone_from(filters);
        }
        config
    }

    /// The settings of the first step.
    #[must_use]
    pub fn first_stage(&self) -> Self {
        self.in_stage(self.stage_at(0, &BTreeMap::new()))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::load::parse;

    const STAGES: &str = "[run]\nnum_steps = 100\n[data]\nenvironment = \"arithmetic\"\ndifficulty = 10\n\
                          [[stage]]\nstart = 20\ndifficulty = 50\n\
                          [[stage]]\nstart = 60\nmax_response_len = 2048\ndynamic_filter = \"nonzero_std\"\n";

    #[test]
    fn a_step_has_the_settings_of_its_stage() {
        let config = parse(STAGES, "run.toml", &[]).unwrap();
        let at = |step| {
            let config = config.in_stage(config.stage_at(step, &BTreeMap::new()));
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
        let again = parse(&config.to_toml().unwrap(), "run.toml", &[]).unwrap();
        assert_eq!(again.stage, config.stage);
    }

    #[test]
    fn weights_choose_among_the_sources() {
        let sources = "[[data.source]]\npath = \"a.jsonl\"\nweight = 1.0\n[[data.source]]\npath = \"b.jsonl\"\nweight = 1.0\n";
        let text = format!("{sources}[[stage]]\nstart = 5\nweights = {{ \"b.jsonl\" = 3.0 }}\n");
        let config = parse(&text, "run.toml", &[]).unwrap();
        assert_eq!(config.first_stage().data.source.len(), 2);
        let later = config.in_stage(Some(0)).data.source;
        assert_eq!((later.len(), later[0].name()), (1, "b.jsonl"));
        assert!((later[0].weight - 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_metric_begins_the_stage_behind_the_one_of_its_step() {
        let text = "[run]\nnum_steps = 100\n[[stage]]\nwhen = \"pass_rate:min=0.5\"\nmax_response_len = 9\n\
                    [[stage]]\nwhen = \"truncated:max=0.1 steps=2\"\nn_samples_per_prompt = 16\n\
                    [[stage]]\nstart = 50\nmax_response_len = 10\n";
        let config = parse(text, "run.toml", &[]).unwrap();
        let awaited = |step, begun: &[(u32, u64)]| {
            let begun: BTreeMap<u32, u64> = begun.iter().copied().collect();
            (config.stage_at(step, &begun), config.awaited_stage(step, &begun).map(|(number, ..)| number))
        };
        assert_eq!(awaited(7, &[]), (None, Some(0)));
        assert_eq!(awaited(7, &[(0, 9)]), (None, None), "it has begun, and the next one waits for its steps");
        assert_eq!(awaited(9, &[(0, 9)]), (Some(0), Some(1)));
        assert_eq!(awaited(50, &[(0, 9)]), (Some(2), None), "a later stage passes over it");
        let second = config.in_stage(Some(1));
        assert_eq!(second.batch().unwrap().num_samples(), 32 * 16);
        let again = parse(&config.to_toml().unwrap(), "run.toml", &[]).unwrap();
        assert_eq!(again.stage, config.stage);
    }
}
