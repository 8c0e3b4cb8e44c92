//! The prompt column: one JSON text that is either a string or a list of chat messages.

use crate::{Error, Result};
use serde_json::Value;

/// What a prompt holds.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptContent {
    /// Plain text.
    Text(String),
    /// Chat messages, each an object with at least `role`.
    Messages(Vec<Value>),
}

impl PromptContent {
    /// Reads the JSON text of the prompt column.
    ///
    /// # Errors
    /// [`Error::Prompt`] when it is neither a JSON string nor a list of messages.
    pub fn parse(json: &str) -> Result<Self> {
        let value = serde_json::from_str(json).map_err(|_| Error::Prompt { got: shorten(json) })?;
        Self::from_value(value)
    }

    /// Takes a JSON value as a prompt.
    ///
    /// # Errors
    /// [`Error::Prompt`] when it is neither a string nor a list of messages.
    pub fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(messages)
                if !messages.is_empty()
                    && messages.iter().all(|m| m.get("role").is_some_and(Value::is_string)) =>
            {
                Ok(Self::Messages(messages))
            }
            other => Err(Error::Prompt { got: shorten(&other.to_string()) }),
        }
    }

    /// The JSON text of the prompt column.
    pub fn to_json(&self) -> String {
        match self {
            Self::Text(text) => Value::String(text.clone()).to_string(),
            Self::Messages(messages) => Value::Array(messages.clone()).to_string(),
        }
    }

    /// The prompt as chat messages: a text is one message of the user.
    pub fn into_messages(self) -> Vec<Value> {
        match self {
            Self::Text(text) => vec![serde_json::json!({"role": "user", "content": text})],
            Self::Messages(messages) => messages,
        }
    }
}

fn shorten(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_looks_like_messages_stays_text() {
        let content = PromptContent::Text("[{\"role\": \"user\"}]".to_owned());
        assert_eq!(PromptContent::parse(&content.to_json()).unwrap(), content);
    }

    #[test]
    fn messages_round_trip() {
        let json = r#"[{"role":"user","content":"hi"}]"#;
        assert_eq!(PromptContent::parse(json).unwrap().to_json(), json);
    }

    #[test]
    fn anything_else_is_refused_with_what_was_found() {
        for bad in ["plain", "3", "[]", "[{\"content\":\"x\"}]"] {
            assert!(PromptContent::parse(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
    }
}
