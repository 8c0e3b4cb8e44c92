//! The `json_schema` reward: the answer is one JSON value, bare or in a code fence, that a JSON Schema accepts.
//!
//! The schema is a file, or `json_schema` of the metadata. References to other documents are not followed.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::unfenced;
use crate::options::Options;
use crate::{Row, RowVerifier, Verdict};

/// The key of the metadata.
const KEY: &str = "json_schema";
/// Schemas of rows that are kept ready.
const MAX_KEPT: usize = 256;

/// Steps back that a pattern which looks around or refers back may take in a text; others never step back.
const MAX_STEPS_BACK: usize = 100_000;

/// Of longer responses it is not said what the schema does not accept.
const MAX_TOLD_BYTES: usize = 16_384;

/// Makes the validator of a schema.
fn compiled(schema: &Value) -> std::result::Result<Validator, ValidationError<'static>> {
    let patterns = PatternOptions::fancy_regex().backtrack_limit(MAX_STEPS_BACK);
    jsonschema::options().with_pattern_options(patterns).build(schema)
}

/// The `json_schema` reward.
pub(crate) struct Schema {
    of_file: Option<Arc<Validator>>,
    of_rows: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Schema {
    pub(crate) fn new(options: &mut Options) -> Result<Self> {
        let of_file = match options.word()? {
            None => None,
            Some(path) => {
                let read =
                    |error: &dyn std::fmt::Display| options.problem(format!("cannot read {path}: {error}"));
                let text = fs::read_to_string(&path).map_err(|error| read(&error))?;
                let value = serde_json::from_str(&text).map_err(|error| read(&error))?;
                let validator = compiled(&value)
                    .map_err(|error| options.problem(format!("{path}: not a JSON Schema: {error}")))?;
                Some(Arc::new(validator))
            }
        };
        Ok(Self { of_file, of_rows: Mutex::new(HashMap::new()) })
    }

    fn validator(&self, row: &Row<'_>) -> Result<Arc<Validator>> {
        if let Some(validator) = &self.of_file {
            return Ok(Arc::clone(validator));
        }
        let bad =
            |problem: String| Error::BadRow { name: KEY, problem: format!("metadata.{KEY}: {problem}") };
        let mut metadata = row.metadata_object().unwrap_or_default();
        let schema = match metadata.remove(KEY).ok_or(Error::MissingMetadata { name: KEY, key: KEY })? {
            Value::String(text) => {
                serde_json::from_str(&text).map_err(|error| bad(format!("not JSON: {error}")))?
            }
            schema => schema,
        };
        let text = schema.to_string();
        let mut kept = self.of_rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(validator) = kept.get(&text) {
            return Ok(Arc::clone(validator));
        }
        let made = compiled(&schema).map_err(|error| bad(format!("not a JSON Schema: {error}")))?;
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        Ok(Arc::clone(kept.entry(text).or_insert(Arc::new(made))))
    }
}

impl RowVerifier for Schema {
    fn verdict(&self, row: &Row<'_>) -> Result<Verdict> {
        let validator = self.validator(row)?;
        let value: Value = match serde_json::from_str(unfenced(row.response)) {
            Ok(value) => value,
            Err(error) => return Ok(Verdict::of(false, format!("not JSON: {error}"))),
        };
        if validator.is_valid(&value) {
            return Ok(Verdict::of(true, "the schema accepts it"));
        }
        // Reasons hold all that was tried, so those of long values are not looked for.
        let is_short = row.response.len() <= MAX_TOLD_BYTES;
        let error = if is_short { validator.validate(&value).err() } else { None };
        let reason = error.map_or_else(
            || "the schema does not accept it".to_owned(),
            |error| format!("{} at {:?}", error, error.instance_path().to_string()),
        );
        Ok(Verdict::of(false, reason))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schema_comes_from_the_row_or_a_file() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}});
        let metadata = json!({"json_schema": schema}).to_string();
        let set = crate::RewardSet::parse(&["json_schema"]).unwrap();
        let reward = |response| {
            let row = Row { response, metadata: Some(&metadata), ..Row::default() };
            set.score(&[row]).unwrap()[0].reward
        };
        assert!(reward("```json\n{\"a\": 1}\n```") > 0.5);
        assert!(reward("{\"a\": \"1\"}") < 0.5 && reward("{}") < 0.5 && reward("a") < 0.5);
        let missing = set.score(&[Row { response: "1", ..Row::default() }]).unwrap_err();
        assert!(missing.to_string().contains("needs metadata.json_schema"), "{missing}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schema.json");
        fs::write(&path, "{\"type\": \"integer\"}").unwrap();
        let set = crate::RewardSet::parse(&[format!("json_schema:{}", path.display())]).unwrap();
        assert!(set.score(&[Row { response: "3", ..Row::default() }]).unwrap()[0].reward > 0.5);
        fs::write(&path, "{\"type\": 3}").unwrap();
        let error = crate::RewardSet::parse(&[format!("json_schema:{}", path.display())]).unwrap_err();
        assert!(error.to_string().contains("not a JSON Schema"), "{error}");
    }
}
