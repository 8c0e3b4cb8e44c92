//! Lists of f32 in JSON: what is not finite is written as a word, because JSON has no number for it.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{SerializeSeq, Serializer};

/// Writes finite values as numbers, the others as `"NaN"`, `"inf"`, `"-inf"`.
pub fn serialize<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(values.len()))?;
    for value in values {
        if value.is_finite() {
            list.serialize_element(value)?;
        } else {
            list.serialize_element(&value.to_string())?;
        }
    }
    list.end()
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Entry {
    Number(f64),
    Word(String),
}

/// Reads numbers and the three words.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
    let entries = Vec::<Entry>::deserialize(deserializer)?;
    entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Number(value) => Ok(value as f32),
            Entry::Word(word) => {
                word.parse().map_err(|_| D::Error::custom(format!("expected a number, got \"{word}\"")))
            }
        })
        .collect()
}
