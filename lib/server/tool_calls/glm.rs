//! A name, then `<arg_key>k</arg_key>` and `<arg_value>v</arg_value>` in pairs, as GLM-4.5 writes it.

use serde_json::{Map, Value};

use super::{ToolCall, function};

/// The call in the text between the marks. A value is text where the tool's schema says so, else JSON.
pub fn parse(inner: &str, tools: &[Value]) -> Option<ToolCall> {
    let (name, mut rest) = match inner.find("<arg_key>") {
        Some(start) => inner.split_at(start),
        None => (inner, ""),
    };
    let name = name.trim().to_owned();
    let properties = function(tools, &name)?.get("parameters").and_then(|schema| schema.get("properties"));
    let mut arguments = Map::new();
    while !rest.trim().is_empty() {
        let (key, after) = between(rest, "<arg_key>", "</arg_key>")?;
        let (value, after) = between(after, "<arg_value>", "</arg_value>")?;
        let key = key.trim();
        let kind = properties.and_then(|properties| properties.get(key)?.get("type"));
        let is_text = kind.is_some_and(|kind| kind == "string");
        let parsed = if is_text { None } else { serde_json::from_str(value.trim()).ok() };
        arguments.insert(key.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned())));
        rest = after;
    }
    Some(ToolCall { name, arguments: Value::Object(arguments).to_string() })
}

/// The text between two marks of which the first comes next, and what follows.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.trim_start().strip_prefix(open)?.split_once(close)
}
