//! `{"name": ..., "parameters": {...}}` as the whole response, as Llama 3 writes it; several with `;` between them.

use serde_json::{Deserializer, Value};

use super::hermes::arguments;
use super::{ToolCall, function};

/// The token before calls of built-in tools, where it is not left out as special.
const TAG: &str = "<|python_tag|>";

/// Whether a response that begins so may be calls.
pub fn may_begin(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || TAG.starts_with(text) || text.starts_with(TAG) || text.starts_with('{')
}

/// The calls of a whole response; none when any part of it is something else.
pub fn parse(text: &str, tools: &[Value]) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let mut rest = text.strip_prefix(TAG).unwrap_or(text).trim_start();
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next()?.ok()?;
        rest = rest.get(values.byte_offset()..)?.trim_start();
        rest = rest.strip_prefix(';').unwrap_or(rest).trim_start();
        let name = value.get("name")?.as_str()?;
        function(tools, name)?;
        let given = value.get("parameters").or_else(|| value.get("arguments"));
        calls.push(ToolCall { name: name.to_owned(), arguments: arguments(given)? });
    }
    (!calls.is_empty()).then_some(calls)
}
