//! Steps or evaluations as a table: one row each, a column for every number that some row has, under today's names.

use std::collections::HashMap;

use crate::names::{rank, today};
use crate::read_metrics::{Metrics, Numbers};

/// A table of numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    /// What counts the rows: `step` or `version`.
    pub key: &'static str,
    /// The names of the columns behind it.
    pub names: Vec<String>,
    /// The rows in the order of their key.
    pub entries: Vec<Entry>,
}

/// One row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// The step or version.
    pub at: u64,
    /// The evaluation set.
    pub set: Option<String>,
    /// When it was written, seconds since 1970.
    pub time: Option<f64>,
    /// A value for each name.
    pub values: Vec<Option<f64>>,
}

impl Rows {
    /// A row for each step.
    pub fn of_steps(metrics: &Metrics) -> Self {
        Self::new("step", metrics.steps.iter().map(|(step, numbers)| (*step, None, numbers)))
    }

    /// A row for each evaluation of a set.
    pub fn of_evals(metrics: &Metrics) -> Self {
        let evals = metrics.evals.iter();
        Self::new("version", evals.map(|((version, set), numbers)| (*version, Some(set.as_str()), numbers)))
    }

    fn new<'a>(
        key: &'static str,
        source: impl Iterator<Item = (u64, Option<&'a str>, &'a Numbers)> + Clone,
    ) -> Self {
        let is_eval = key == "version";
        let mut names: Vec<String> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (_, _, numbers) in source.clone() {
            for name in numbers.keys().filter(|name| *name != "time") {
                if places.contains_key(name.as_str()) {
                    continue;
                }
                // The evaluations keep their names; those of steps may be of an older version.
                let new = if is_eval { name } else { today(name) };
                let at = names.iter().position(|known| known == new).unwrap_or_else(|| {
                    names.push(new.to_owned());
                    names.len() - 1
                });
                places.insert(name, at);
            }
        }
        let row = |(at, set, numbers): (u64, Option<&str>, &Numbers)| {
            let mut values = vec![None; names.len()];
            for (name, value) in numbers {
                if let Some(place) = places.get(name.as_str()) {
                    values[*place] = value.as_f64();
                }
            }
            let time = numbers.get("time").and_then(serde_json::Value::as_f64);
            Entry { at, set: set.map(str::to_owned), time, values }
        };
        let entries: Vec<Entry> = source.map(row).collect();
        Self { key, names, entries }.sorted()
    }

    /// The columns in the order in which a reader looks for them.
    fn sorted(self) -> Self {
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_by_key(|at| (rank(&self.names[*at]), self.names[*at].clone()));
        let rows = self
            .entries
            .into_iter()
            .map(|row| Entry { values: order.iter().map(|at| row.values[*at]).collect(), ..row });
        Self {
            names: order.iter().map(|at| self.names[*at].clone()).collect(),
            entries: rows.collect(),
            key: self.key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_and_newer_names_share_a_column() {
        let mut metrics = Metrics::default();
        metrics.steps.insert(0, serde_json::from_str("{\"loss\":1,\"reward_mean\":0.5,\"time\":9}").unwrap());
        metrics.steps.insert(1, serde_json::from_str("{\"train/loss\":2,\"x\":3}").unwrap());
        let rows = Rows::of_steps(&metrics);
        assert_eq!(rows.names, ["rollout/raw_reward", "train/loss", "x"]);
        assert_eq!(rows.entries[0].values, [Some(0.5), Some(1.0), None]);
        assert_eq!((rows.entries[0].time, rows.entries[1].values[1]), (Some(9.0), Some(2.0)));
    }
}
