//! `{"name": ..., "arguments": {...}}`, as Hermes and Qwen write it.

use serde_json::Value;

use super::ToolCall;

/// The call in the text between the marks.
pub fn parse(inner: &str) -> Option<ToolCall> {
    let value: Value = serde_json::from_str(inner.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    Some(ToolCall { name, arguments: arguments(value.get("arguments"))? })
}

/// Arguments stand as an object, or as the text of one.
pub fn arguments(value: Option<&Value>) -> Option<String> {
    match value {
        None | Some(Value::Null) => Some("{}".to_owned()),
        Some(Value::Object(object)) => Some(Value::Object(object.clone()).to_string()),
        Some(Value::String(text)) => {
            let value: Value = serde_json::from_str(text).ok()?;
            value.is_object().then(|| value.to_string())
        }
        Some(_) => None,
    }
}
