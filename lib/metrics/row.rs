//! One line of numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// A line of a metric file: who, when, and numbers by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    fields: Map<String, Value>,
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Row {
    /// A line about a training step, told now.
    pub fn of_step(step: u64, tool: &str) -> Self {
        let mut row = Self::default();
        row.fields.insert("step".to_owned(), step.into());
        row.stamp(tool);
        row
    }

    /// A line about the evaluation of a set with a version, told now.
    pub fn of_evaluation(version: u64, set: &str, tool: &str) -> Self {
        let mut row = Self::default();
        row.fields.insert("version".to_owned(), version.into());
        row.fields.insert("set".to_owned(), set.into());
        row.stamp(tool);
        row
    }

    /// A line about this moment.
    pub fn of_now(tool: &str) -> Self {
        let mut row = Self::default();
        row.stamp(tool);
        row
    }

    fn stamp(&mut self, tool: &str) {
        self.fields.insert("tool".to_owned(), tool.into());
        self.fields.insert("time".to_owned(), unix_time().into());
    }

    /// Adds a number; one that is not finite becomes `null`, since JSON has no other word for it.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.fields
            .insert(name.into(), serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number));
    }

    /// Adds a number that there may be none of.
    pub fn set_some(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Adds a count, without a decimal point.
    pub fn count(&mut self, name: impl Into<String>, value: u64) {
        self.fields.insert(name.into(), value.into());
    }

    /// Adds a word.
    pub fn word(&mut self, name: &str, value: &str) {
        self.fields.insert(name.to_owned(), value.into());
    }

    /// One number; NaN where it is there and not finite.
    pub fn number(&self, name: &str) -> Option<f64> {
        let value = self.fields.get(name)?;
        if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
    }

    /// The step, or the version of an evaluation.
    pub fn step(&self) -> Option<u64> {
        ["step", "version"].iter().find_map(|key| self.fields.get(*key)?.as_u64())
    }

    /// The evaluation set.
    pub fn set_name(&self) -> Option<&str> {
        self.fields.get("set")?.as_str()
    }

    /// When it was told, in seconds since 1970.
    pub fn time(&self) -> f64 {
        self.number("time").unwrap_or(0.0)
    }

    /// The measured numbers, without step, version and time.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let is_measured = |key: &str| !["step", "version", "time"].contains(&key);
        let fields = self.fields.iter().filter(move |(key, _)| is_measured(key));
        fields.filter_map(|(key, value)| Some((key.as_str(), value.as_f64()?)))
    }

    /// The names of the numbers that are not finite.
    pub fn not_finite(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(|(_, value)| value.is_null()).map(|(key, _)| key.as_str())
    }

    /// Reads a line back; none for what is no object.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok().map(|fields| Self { fields })
    }

    /// The line, with its end.
    pub fn to_line(&self) -> String {
        let mut line = Value::Object(self.fields.clone()).to_string();
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_and_what_is_not_finite_is_null() {
        let mut row = Row::of_step(3, "train");
        row.set("train/loss", f64::NAN);
        row.set("train/grad_norm", 0.5);
        let line = row.to_line();
        assert!(
            line.starts_with("{\"step\":3,\"tool\":\"train\",\"time\":") && line.ends_with("}\n"),
            "{line}"
        );
        assert!(line.contains("\"train/loss\":null"), "{line}");
        let again = Row::parse(&line).unwrap();
        assert_eq!((again.step(), again.number("train/grad_norm")), (Some(3), Some(0.5)));
        assert!(again.number("train/loss").unwrap().is_nan());
        assert_eq!(again.numbers().collect::<Vec<_>>(), [("train/grad_norm", 0.5)]);
    }
}
