//! Messages of a chat, as templates expect them.

use serde_json::{Map, Value};

use crate::{ApiError, ApiResult};

/// Parts of text become text, and arguments of tool calls become objects.
///
/// # Errors
/// A message without role, or with parts that are no text.
pub fn prepare(messages: Vec<Value>) -> ApiResult<Vec<Value>> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "messages: expected at least one"));
    }
    messages.into_iter().enumerate().map(|(number, message)| one(number, message)).collect()
}

fn one(number: usize, message: Value) -> ApiResult<Value> {
    let wrong = |what: String| ApiError::field("messages", format!("messages[{number}]: {what}"));
    let Value::Object(mut message) = message else {
        return Err(wrong("expected an object with role and content".to_owned()));
    };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(wrong("expected a role".to_owned()));
    }
    let content = match message.remove("content").unwrap_or_default() {
        Value::Null => String::new(),
        Value::String(text) => text,
        Value::Array(parts) => text_of(&parts).map_err(wrong)?,
        _ => return Err(wrong("content: expected text or a list of parts".to_owned())),
    };
    message.insert("content".to_owned(), content.into());
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for function in calls.into_iter().flatten().filter_map(|call| call.get_mut("function")) {
        // OpenAI writes an object's text; templates write the object.
        if let Some(arguments) = function.get_mut("arguments")
            && let Some(text) = arguments.as_str()
        {
            let parsed: Result<Map<String, Value>, _> = serde_json::from_str(text);
            let error =
                |error| wrong(format!("tool_calls: arguments: expected the text of a JSON object: {error}"));
            *arguments = Value::Object(parsed.map_err(error)?);
        }
    }
    Ok(Value::Object(message))
}

fn text_of(parts: &[Value]) -> Result<String, String> {
    let text = |part: &Value| match part.get("type").and_then(Value::as_str) {
        Some("text") => Ok(part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned()),
        kind => Err(format!("content: expected parts of text alone, got {}", kind.unwrap_or("none"))),
    };
    parts.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_become_text_and_arguments_become_objects() {
        let messages = vec![
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "content": null,
                   "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]}),
        ];
        let prepared = prepare(messages).unwrap();
        assert_eq!(prepared[0]["content"], "ab");
        assert_eq!(prepared[1]["content"], "");
        assert_eq!(prepared[1]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    }

    #[test]
    fn what_no_template_takes_is_refused_by_its_number() {
        for (message, part) in [
            (json!("hi"), "messages[0]: expected an object"),
            (json!({"content": "a"}), "role"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "got image_url"),
            (json!({"role": "user", "content": 3}), "content"),
            (json!({"role": "assistant", "tool_calls": [{"function": {"arguments": "[]"}}]}), "arguments"),
        ] {
            let error = prepare(vec![message]).unwrap_err().message;
            assert!(error.contains(part), "{error}");
        }
        assert!(prepare(Vec::new()).is_err());
    }
}
