//! Watches a run's numbers and warns once when one of them goes where runs are lost: in the log, in
//! `metrics/warnings.jsonl`, and in a sentence at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use slime_config::{Warnings, paths};

use crate::append::append;
use crate::rules::{self, Finding, Series};
use crate::{Result, Row, cost};

/// A warning that fired goes on until its rule does not hold at this share of its threshold.
const HYSTERESIS: f64 = 0.8;
/// Tool name of the file of warnings.
const FILE: &str = "warnings";

/// Every kind of warning.
pub const KINDS: [&str; 8] = [
    "entropy_collapse",
    "response_len_collapse",
    "equal_rewards",
    "mismatch_rise",
    "truncation",
    "reward_jump",
    "not_finite",
    "dead_environment",
];

/// One warning.
#[derive(Debug, Clone, PartialEq)]
pub struct Warning {
    /// The step it began with.
    pub step: u64,
    /// Which rule: the name of its threshold's subject, such as `entropy_collapse`.
    pub kind: &'static str,
    /// What was compared.
    pub value: f64,
    /// With what.
    pub threshold: f64,
    /// In words.
    pub message: String,
}

impl Warning {
    fn row(&self, tool: &str) -> Row {
        let mut row = Row::of_step(self.step, tool);
        row.word("kind", self.kind);
        row.set("value", self.value);
        row.set("threshold", self.threshold);
        row.word("message", &self.message);
        row
    }
}

/// Every reward of a source in a row of steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Streak {
    reward: f32,
    num_steps: u64,
}

/// The sources whose rewards are all 0 or all 1, step after step.
#[derive(Debug, Clone, Default)]
pub struct DeadSources {
    streaks: BTreeMap<String, Streak>,
}

impl DeadSources {
    /// The smallest and the largest reward of a source in a step; the length of its streak and the reward.
    pub fn observe(&mut self, source: &str, least: f32, greatest: f32) -> (u64, f32) {
        let is_flat = least.total_cmp(&greatest).is_eq() && [0.0, 1.0].contains(&least);
        let streak = self.streaks.entry(source.to_owned()).or_insert(Streak { reward: least, num_steps: 0 });
        let goes_on = is_flat && streak.reward.total_cmp(&least).is_eq();
        streak.num_steps = if goes_on { streak.num_steps + 1 } else { u64::from(is_flat) };
        streak.reward = least;
        (streak.num_steps, least)
    }
}

/// The rules over the numbers of one tool.
#[derive(Debug)]
pub struct Watch {
    settings: Warnings,
    tool: String,
    path: PathBuf,
    series: BTreeMap<&'static str, Vec<(u64, f64)>>,
    sources: DeadSources,
    active: BTreeSet<String>,
    told: Vec<Warning>,
}

/// The numbers that rules look at.
const WATCHED: [&str; 7] = [
    "rollout/entropy",
    "rollout/response_lengths",
    "rollout/truncated",
    "rollout/raw_reward",
    "rollout/reward_std",
    "rollout/zero_std_ratio",
    "train/train_rollout_logprob_abs_diff",
];

/// A rule at a threshold, over the series that it asks for by name.
type Rule<'a> = (&'static str, &'static str, f64, &'a dyn Fn(&Series, f64) -> Option<Finding>);

impl Watch {
    /// Nothing seen yet.
    pub fn new(run: &Path, tool: &str, settings: &Warnings) -> Self {
        Self {
            settings: settings.clone(),
            tool: tool.to_owned(),
            path: run.join(paths::metrics_file(FILE)),
            series: BTreeMap::new(),
            sources: DeadSources::default(),
            active: BTreeSet::new(),
            told: Vec::new(),
        }
    }

    /// Goes on where an earlier start stopped: what it warned of is not told again.
    pub fn resume(&mut self, rows: &[Row]) {
        for row in rows {
            self.judge(row);
        }
    }

    /// Judges a step's numbers; what begins is logged and written down.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn observe(&mut self, row: &Row) -> Result<()> {
        cost::counted(|| {
            let found = self.judge(row);
            self.tell(found)
        })
    }

    /// Judges the rewards of a step by source: name, smallest, largest.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn observe_sources<'a>(
        &mut self,
        step: u64,
        rewards: impl IntoIterator<Item = (&'a str, f32, f32)>,
    ) -> Result<()> {
        let threshold = self.settings.dead_environment;
        let mut found = Vec::new();
        for (source, least, greatest) in rewards {
            let (num_steps, reward) = self.sources.observe(source, least, greatest);
            let rule = |threshold| rules::dead(source, reward.into(), num_steps, step, threshold);
            found.extend(self.onset("dead_environment", source, step, threshold, &rule));
        }
        self.tell(found)
    }

    /// What was warned of since the start, in a sentence; none when there was nothing.
    pub fn summary(&self) -> Option<String> {
        let (first, num) = (self.told.first()?, self.told.len());
        let rest =
            self.told.iter().skip(1).map(|warning| format!("; step {}: {}", warning.step, warning.message));
        let plural = if num == 1 { "" } else { "s" };
        Some(format!(
            "{num} warning{plural}: step {}: {}{}",
            first.step,
            first.message,
            rest.collect::<String>()
        ))
    }

    fn tell(&mut self, found: Vec<Warning>) -> Result<()> {
        for warning in found {
            tracing::warn!("step {}: {}", warning.step, warning.message);
            append(&self.path, warning.row(&self.tool).to_line().as_bytes())?;
            self.told.push(warning);
        }
        Ok(())
    }

    /// The warnings that begin with this row. A step that is trained again replaces what was seen of it and later ones.
    fn judge(&mut self, row: &Row) -> Vec<Warning> {
        let Some(step) = row.step().filter(|_| row.set_name().is_none()) else { return Vec::new() };
        for name in WATCHED {
            if let Some(value) = row.number(name) {
                let series = self.series.entry(name).or_default();
                series.truncate(series.partition_point(|(seen, _)| *seen < step));
                series.push((step, value));
            }
        }
        let settings = self.settings.clone();
        let window = settings.window as usize;
        let stds = self.series.get("rollout/reward_std").cloned().unwrap_or_default();
        let rules: [Rule<'_>; 6] = [
            ("entropy_collapse", "rollout/entropy", settings.entropy_drop, &|series, at| {
                rules::fell("entropy", series, window, at)
            }),
            (
                "response_len_collapse",
                "rollout/response_lengths",
                settings.response_len_drop,
                &|series, at| rules::fell("the mean response length", series, window, at),
            ),
            ("equal_rewards", "rollout/zero_std_ratio", settings.equal_rewards, &|series, at| {
                rules::stays_above("groups have rewards that are all equal", series, at)
            }),
            (
                "mismatch_rise",
                "train/train_rollout_logprob_abs_diff",
                settings.mismatch_rise,
                &|series, at| {
                    rules::rose("the log-prob difference of training and generation", series, window, at)
                },
            ),
            ("truncation", "rollout/truncated", settings.truncated, &|series, at| {
                rules::stays_above("responses are cut off for their length", series, at)
            }),
            ("reward_jump", "rollout/raw_reward", settings.reward_jump, &|series, at| {
                rules::jumped(series, &stds, at)
            }),
        ];
        let mut found = Vec::new();
        for (kind, name, threshold, rule) in rules {
            if row.number(name).is_none() {
                continue;
            }
            let series = self.series.get(name).cloned().unwrap_or_default();
            found.extend(self.onset(kind, "", step, threshold, &|at| rule(&series, at)));
        }
        let names: Vec<&str> = row.not_finite().collect();
        let rule = |at| rules::not_finite(names.iter().copied(), at);
        found.extend(self.onset("not_finite", "", step, settings.not_finite, &rule));
        found
    }

    /// The warning when the rule holds and did not before; `about` tells apart what one kind may be about.
    fn onset(
        &mut self,
        kind: &'static str,
        about: &str,
        step: u64,
        threshold: f64,
        rule: &dyn Fn(f64) -> Option<Finding>,
    ) -> Option<Warning> {
        let key = format!("{kind}/{about}");
        if threshold == 0.0 {
            return None;
        }
        if self.active.contains(&key) {
            if rule(threshold * HYSTERESIS).is_none() {
                self.active.remove(&key);
            }
            return None;
        }
        let Finding { value, message } = rule(threshold)?;
        self.active.insert(key);
        Some(Warning { step, kind, value, threshold, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(run: &Path, change: impl FnOnce(&mut Warnings)) -> Watch {
        let mut settings = Warnings::default();
        change(&mut settings);
        Watch::new(run, "train", &settings)
    }

    fn row(step: u64, numbers: &[(&str, f64)]) -> Row {
        let mut row = Row::of_step(step, "train");
        for (name, value) in numbers {
            row.set(*name, *value);
        }
        row
    }

    /// The kinds that a series of one number gives, with their steps.
    fn kinds(watch: &mut Watch, name: &str, values: &[f64]) -> Vec<(u64, &'static str)> {
        (0..)
            .zip(values)
            .flat_map(|(step, value)| watch.judge(&row(step, &[(name, *value)])))
            .map(|warning| (warning.step, warning.kind))
            .collect()
    }

    #[test]
    fn each_number_has_its_warning_and_its_near_miss() {
        let run = Path::new("run");
        for (name, kind, fires, misses) in [
            ("rollout/entropy", "entropy_collapse", vec![2.0, 2.0, 0.4], vec![2.0, 2.0, 0.41]),
            ("rollout/response_lengths", "response_len_collapse", vec![99.0, 29.0], vec![99.0, 31.0]),
            ("rollout/zero_std_ratio", "equal_rewards", vec![0.9, 0.9, 0.9], vec![0.9, 0.9, 0.8, 0.9]),
            ("rollout/truncated", "truncation", vec![0.5, 0.5, 0.5], vec![0.5, 0.5, 0.4]),
            ("rollout/raw_reward", "reward_jump", vec![0.1, 0.1, 0.1, 0.9], vec![0.9, 0.9, 0.9, 0.9]),
            (
                "train/train_rollout_logprob_abs_diff",
                "mismatch_rise",
                vec![0.01, 0.01, 0.01, 0.03],
                vec![0.01, 0.01, 0.01, 0.029],
            ),
            ("train/loss", "not_finite", vec![0.5, f64::NAN], vec![0.5, 0.5]),
        ] {
            let last = fires.len() as u64 - 1;
            assert!(KINDS.contains(&kind), "{kind}");
            assert_eq!(kinds(&mut watch(run, |_| ()), name, &fires), [(last, kind)], "{name}");
            assert!(kinds(&mut watch(run, |_| ()), name, &misses).is_empty(), "{name}");
            let off = |settings: &mut Warnings| {
                *settings = Warnings {
                    window: 10,
                    entropy_drop: 0.0,
                    response_len_drop: 0.0,
                    equal_rewards: 0.0,
                    mismatch_rise: 0.0,
                    truncated: 0.0,
                    not_finite: 0.0,
                    reward_jump: 0.0,
                    dead_environment: 0.0,
                };
            };
            assert!(kinds(&mut watch(run, off), name, &fires).is_empty(), "{name} switched off");
        }
    }

    #[test]
    fn warning_is_told_once_until_it_is_well_over() {
        let mut watch = watch(Path::new("run"), |_| ());
        let values = [0.0, 0.9, 0.9, 0.9, 0.45, 0.45, 0.45, 0.9, 0.9, 0.0, 0.0, 0.9, 0.9, 0.9];
        let told = kinds(&mut watch, "rollout/truncated", &values);
        // At 0.45 it still holds at 0.8 x 0.5; at 0.3 and below it is over, and begins again.
        assert_eq!(told, [(2, "truncation"), (12, "truncation")]);
    }

    #[test]
    fn sources_are_dead_after_so_many_steps_of_the_same_reward() {
        let run = tempfile::tempdir().unwrap();
        let mut watch = watch(run.path(), |settings| settings.dead_environment = 3.0);
        for step in 0..6 {
            // `zeros` is dead from step 2 on, `mixed` never, `alternates` is 0 and 1 by turns, `halves` all 0.5.
            let turn = (step % 2) as f32;
            let rewards =
                [("zeros", 0.0, 0.0), ("mixed", 0.0, 1.0), ("alternates", turn, turn), ("halves", 0.5, 0.5)];
            watch.observe_sources(step, rewards).unwrap();
        }
        let summary = watch.summary().unwrap();
        assert_eq!(summary, "1 warning: step 2: source zeros: every reward was 0 for 3 steps up to step 2");
        let lines = std::fs::read_to_string(run.path().join("metrics/warnings.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        let row = Row::parse(lines.trim_end()).unwrap();
        assert_eq!(
            (row.step(), row.number("value"), row.number("threshold")),
            (Some(2), Some(3.0), Some(3.0))
        );
        assert!(
            lines.contains("\"kind\":\"dead_environment\"") && lines.contains("\"message\":\"source zeros")
        );
    }

    #[test]
    fn later_start_does_not_repeat_and_a_step_trained_again_replaces_itself() {
        let run = Path::new("run");
        let rows: Vec<Row> =
            [2.0, 2.0, 0.3].iter().zip(0..).map(|(v, step)| row(step, &[("rollout/entropy", *v)])).collect();
        let mut again = watch(run, |_| ());
        again.resume(&rows);
        assert!(again.judge(&row(3, &[("rollout/entropy", 0.3)])).is_empty());
        assert_eq!(again.summary(), None);
        again.judge(&row(1, &[("rollout/entropy", 2.0)]));
        assert_eq!(again.series["rollout/entropy"], [(0, 2.0), (1, 2.0)]);
    }
}
