//! Reads what the tools warned of.

use std::fs;

use serde::Deserialize;
use slime_config::RunDir;

/// One warning.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// The step it is about.
    pub step: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// Such as `entropy_collapse`.
    pub kind: String,
    /// The number that was seen.
    pub value: Option<f64>,
    /// The number it should not have passed.
    pub threshold: Option<f64>,
    /// The same in a sentence.
    pub message: String,
}

/// The same warning at one or several steps.
#[derive(Debug, Clone, PartialEq)]
pub struct WarningGroup {
    /// Such as `entropy_collapse`.
    pub kind: String,
    /// How often.
    pub count: usize,
    /// The first and the last step.
    pub steps: (u64, u64),
    /// What was said last.
    pub newest: Warning,
}

/// The warnings of a run, oldest first; none where nothing was written.
pub fn read_warnings(run_dir: &RunDir) -> Vec<Warning> {
    let bytes = fs::read(run_dir.metrics_file("warnings")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The warnings by their kind, the gravest kinds first.
pub fn grouped(warnings: &[Warning]) -> Vec<WarningGroup> {
    let mut groups: Vec<WarningGroup> = Vec::new();
    for warning in warnings {
        match groups.iter_mut().find(|group| group.kind == warning.kind) {
            Some(group) => {
                group.count += 1;
                group.steps = (group.steps.0.min(warning.step), group.steps.1.max(warning.step));
                group.newest = warning.clone();
            }
            None => groups.push(WarningGroup {
                kind: warning.kind.clone(),
                count: 1,
                steps: (warning.step, warning.step),
                newest: warning.clone(),
            }),
        }
    }
    groups.sort_by_key(|group| (!is_grave(&group.kind), group.steps.0));
    groups
}

/// Whether the numbers of a run with this warning cannot be trusted.
pub fn is_grave(kind: &str) -> bool {
    matches!(
        kind,
        "not_finite" | "mismatch_rise" | "dead_environment" | "entropy_collapse" | "response_len_collapse"
    )
}

/// The kind in words.
pub fn title(kind: &str) -> String {
    let known = match kind {
        "entropy_collapse" => "The policy has become too sure of itself",
        "response_len_collapse" => "Answers have become much shorter",
        "equal_rewards" => "Many groups teach nothing",
        "mismatch_rise" => "Generation and training disagree",
        "truncation" => "Many answers are cut off",
        "not_finite" => "A number is not finite",
        "reward_jump" => "The reward jumped",
        "dead_environment" => "An environment gives no answers",
        _ => "",
    };
    if known.is_empty() { kind.replace('_', " ") } else { known.to_owned() }
}

/// What a reader can do about a kind.
pub fn advice(kind: &str) -> &'static str {
    match kind {
        "entropy_collapse" => {
            "It explores no more. Try a smaller learning rate, a KL penalty or a higher upper clip."
        }
        "response_len_collapse" => "Read some answers below: short ones may be enough to get the reward.",
        "equal_rewards" => {
            "All answers of a group have the same reward, so it has no gradient. Mix in harder or easier \
             prompts, or filter flat groups."
        }
        "mismatch_rise" => {
            "Training uses other probabilities than generation did. Check dtypes, versions and staleness."
        }
        "truncation" => "Raise rollout.max_response_len, or reward shorter answers.",
        "not_finite" => {
            "Training is broken from this step on. Go back to a checkpoint and lower the learning rate."
        }
        "reward_jump" => "Read the answers of this step: a sudden jump is often a gap in the reward.",
        "dead_environment" => "Look at the logs of the environment or reward program.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_a_kind_stand_together_the_gravest_first() {
        let warning = |step, kind: &str| Warning { step, kind: kind.to_owned(), ..Warning::default() };
        let all = [warning(3, "truncation"), warning(5, "truncation"), warning(4, "not_finite")];
        let groups = grouped(&all);
        assert_eq!((groups[0].kind.as_str(), groups[0].count), ("not_finite", 1));
        assert_eq!((groups[1].count, groups[1].steps), (2, (3, 5)));
        assert_eq!(title("some_new_kind"), "some new kind");
    }

    #[test]
    fn every_kind_of_warning_has_a_title_and_advice() {
        for kind in slime_metrics::KINDS {
            assert_ne!(title(kind), kind.replace('_', " "));
            assert!(!advice(kind).is_empty(), "{kind}");
        }
    }
}
