//! Fields that hold JSON text: embedded in JSONL as the JSON they are, kept byte for byte.

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSONL line must not contain a line break; between JSON tokens a space means the same.
fn raw<E: serde::ser::Error>(text: &str) -> Result<Box<RawValue>, E> {
    let line: String = text.chars().map(|c| if c == '\n' || c == '\r' { ' ' } else { c }).collect();
    RawValue::from_string(line).map_err(|error| E::custom(format!("not JSON: {error}: {text}")))
}

/// A field that is always there; an empty text is `null`.
pub mod required {
    use super::{Deserialize, Deserializer, RawValue, Serialize, Serializer, raw};

    /// Embeds the text.
    pub fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        if text.is_empty() {
            return serializer.serialize_none();
        }
        raw::<S::Error>(text)?.serialize(serializer)
    }

    /// Takes the JSON as text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?.get().to_owned();
        Ok(if text == "null" { String::new() } else { text })
    }
}

/// A field that may be missing or `null`.
pub mod optional {
    use super::{Deserialize, Deserializer, RawValue, Serialize, Serializer, raw};

    /// Embeds the text.
    #[expect(clippy::ref_option, reason = "the signature serde's `with` calls")]
    pub fn serialize<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        match text {
            None => serializer.serialize_none(),
            Some(text) => raw::<S::Error>(text)?.serialize(serializer),
        }
    }

    /// Takes the JSON as text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        let text = Option::<Box<RawValue>>::deserialize(deserializer)?.map(|value| value.get().to_owned());
        Ok(text.filter(|text| text != "null"))
    }
}
