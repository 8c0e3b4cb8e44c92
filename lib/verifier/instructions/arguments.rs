//! What an instruction is given: the object of `kwargs` at its place.

use serde_json::{Map, Value};

/// The arguments of one instruction; a missing or wrong one is a message.
pub(super) struct Arguments<'a>(pub(super) &'a Map<String, Value>);

impl Arguments<'_> {
    /// A number.
    pub(super) fn number(&self, key: &str) -> Result<f64, String> {
        self.0.get(key).and_then(Value::as_f64).ok_or_else(|| self.wrong(key, "a number"))
    }

    /// A count.
    pub(super) fn count(&self, key: &str) -> Result<usize, String> {
        let number = self.number(key)?;
        let is_count = number >= 0.0 && number.fract() == 0.0;
        if is_count { Ok(number as usize) } else { Err(self.wrong(key, "a count")) }
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&str, String> {
        self.0.get(key).and_then(Value::as_str).ok_or_else(|| self.wrong(key, "a text"))
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&str>, String> {
        let list = self.0.get(key).and_then(Value::as_array);
        let texts = list.and_then(|list| list.iter().map(Value::as_str).collect());
        texts.ok_or_else(|| self.wrong(key, "a list of texts"))
    }

    /// Whether `got` is as `relation` ("at least" or "less than") says of `wanted`.
    pub(super) fn compares(&self, relation: &str, got: usize, wanted: f64) -> Result<bool, String> {
        match self.text(relation)? {
            "at least" => Ok(got as f64 >= wanted),
            "less than" => Ok((got as f64) < wanted),
            _ => Err(self.wrong(relation, "\"at least\" or \"less than\"")),
        }
    }

    fn wrong(&self, key: &str, expected: &str) -> String {
        let got = self.0.get(key).map_or("none".to_owned(), Value::to_string);
        format!("{key}: expected {expected}, got {}", got.chars().take(80).collect::<String>())
    }
}
