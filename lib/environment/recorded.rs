//! Rows with recorded responses: a conversation, or a prompt with two of which one was preferred.
//!
//! The forms are those of TRL (<https://huggingface.co/docs/trl/dataset_formats>): `messages`; `prompt` and `completion`;
//! `prompt`, `chosen` and `rejected`; `chosen` and `rejected` that begin with the same prompt. Text is what one side says.

use serde_json::{Map, Number, Value};

use crate::Keys;

/// What a row holds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Recorded {
    /// Text, or the messages before the responses (none where the assistant begins).
    pub prompt: Value,
    /// Each text, or messages of which the first is the assistant's; of two the first is the better one.
    pub responses: Vec<Value>,
    /// How much better it is.
    pub margin: Option<Number>,
}

/// What is wrong with a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// A key it does not have, and the option that names it.
    Missing(String, &'static str),
    /// Anything else.
    Wrong(String),
}

type Result<T> = std::result::Result<T, Problem>;

/// A conversation: messages, or a prompt and its completion.
pub(crate) fn conversation(row: &mut Map<String, Value>, keys: &Keys) -> Result<Recorded> {
    let (prompt, response) = if let Some(value) = take(row, &keys.messages) {
        let mut messages = messages(value, &keys.messages)?;
        let Some(first) = messages.iter().position(|message| role(message) == "assistant") else {
            let roles: Vec<&str> = messages.iter().map(role).collect();
            let key = &keys.messages;
            return Err(Problem::Wrong(format!(
                "key \"{key}\": expected a message of the assistant, got only {}",
                roles.join(", ")
            )));
        };
        let response = messages.split_off(first);
        (Value::Array(messages), Value::Array(response))
    } else if let Some(value) = take(row, &keys.input) {
        let prompt = side(value, &keys.input)?;
        let completion = take(row, &keys.completion)
            .ok_or_else(|| Problem::Missing(keys.completion.clone(), "completion_key"))?;
        (prompt, response(completion, &keys.completion)?)
    } else {
        return Err(Problem::Missing(keys.messages.clone(), "messages_key"));
    };
    Ok(Recorded { prompt, responses: vec![response], margin: None })
}

/// A prompt with a chosen and a rejected response, or both with the prompt before them.
pub(crate) fn preference(row: &mut Map<String, Value>, keys: &Keys) -> Result<Recorded> {
    let mut required = |key: &String, option| {
        let value = take(row, key).ok_or_else(|| Problem::Missing(key.clone(), option))?;
        side(value, key)
    };
    let chosen = required(&keys.chosen, "chosen_key")?;
    let rejected = required(&keys.rejected, "rejected_key")?;
    let both = format!("keys \"{}\" and \"{}\"", keys.chosen, keys.rejected);
    if chosen == rejected {
        return Err(Problem::Wrong(format!("{both}: expected two different responses, got the same twice")));
    }
    let margin = match take(row, &keys.margin) {
        None => None,
        Some(Value::Number(margin)) => Some(margin),
        Some(other) => {
            let key = &keys.margin;
            return Err(Problem::Wrong(format!("key \"{key}\": expected a number, got {}", shorten(&other))));
        }
    };
    let prompt = take(row, &keys.input).map(|prompt| side(prompt, &keys.input)).transpose()?;
    // Some data sets tell the question as text beside conversations that begin with it.
    let is_repeated = |prompt: &Value| prompt.is_string() && begins_with_prompt(&chosen);
    let (prompt, responses) = match prompt {
        Some(prompt) if !is_repeated(&prompt) => {
            (prompt, vec![response(chosen, &keys.chosen)?, response(rejected, &keys.rejected)?])
        }
        _ => split(chosen, rejected, keys, &both)?,
    };
    Ok(Recorded { prompt, responses, margin })
}

/// Splits what both begin with from the responses.
fn split(chosen: Value, rejected: Value, keys: &Keys, both: &str) -> Result<(Value, Vec<Value>)> {
    let wrong = |reason: &str| Err(Problem::Wrong(format!("{both}: {reason}")));
    match (chosen, rejected) {
        (Value::Array(mut chosen), Value::Array(mut rejected)) => {
            let len = chosen.iter().zip(&rejected).take_while(|(left, right)| left == right).count();
            if len == 0 {
                return wrong(
                    "expected the same prompt before both, got conversations that differ from the first message",
                );
            }
            for (key, messages) in [(&keys.chosen, &chosen), (&keys.rejected, &rejected)] {
                let found = messages.get(len).map_or("nothing", role);
                if found != "assistant" {
                    return Err(Problem::Wrong(format!(
                        "key \"{key}\": expected message {} (the first that differs) to be the assistant's, got {found}",
                        len + 1
                    )));
                }
            }
            let responses = vec![Value::Array(chosen.split_off(len)), Value::Array(rejected.split_off(len))];
            chosen.truncate(len);
            Ok((Value::Array(chosen), responses))
        }
        (Value::String(_), Value::String(_)) if keys.is_chat => wrong(&format!(
            "expected a prompt (key \"{}\") beside responses in text, got none\nhint: data.apply_chat_template = false takes \
             what both texts begin with as the prompt",
            keys.input
        )),
        (Value::String(chosen), Value::String(rejected)) => {
            let same =
                chosen.char_indices().zip(rejected.chars()).take_while(|((_, left), right)| left == right);
            let len = same.last().map_or(0, |((at, letter), _)| at + letter.len_utf8());
            // Tokens begin with the space before a word.
            let prompt = chosen[..len].strip_suffix(' ').unwrap_or(&chosen[..len]).to_owned();
            let (left, right) = (&chosen[prompt.len()..], &rejected[prompt.len()..]);
            if prompt.is_empty() || left.trim().is_empty() || right.trim().is_empty() {
                return wrong(
                    "expected the same prompt before two responses, got texts that do not begin so",
                );
            }
            Ok((prompt.clone().into(), vec![left.into(), right.into()]))
        }
        _ => wrong("expected two texts or two lists of messages, got one of each"),
    }
}

fn take(row: &mut Map<String, Value>, key: &str) -> Option<Value> {
    row.remove(key).filter(|value| !value.is_null())
}

/// Text or messages.
fn side(value: Value, key: &str) -> Result<Value> {
    match value {
        Value::String(_) => Ok(value),
        other => messages(other, key).map(Value::Array),
    }
}

/// What the assistant says to a prompt, and what follows.
fn response(value: Value, key: &str) -> Result<Value> {
    let value = side(value, key)?;
    match &value {
        Value::Array(messages) if begins_with_prompt(&value) => Err(Problem::Wrong(format!(
            "key \"{key}\": expected the first message to be the assistant's, got {}",
            messages.first().map_or("nothing", role)
        ))),
        Value::String(text) if text.is_empty() => {
            Err(Problem::Wrong(format!("key \"{key}\": expected a response, got an empty text")))
        }
        _ => Ok(value),
    }
}

fn begins_with_prompt(messages: &Value) -> bool {
    messages.as_array().is_some_and(|messages| messages.first().map(role) != Some("assistant"))
}

fn messages(value: Value, key: &str) -> Result<Vec<Value>> {
    match value {
        Value::Array(messages) if !messages.is_empty() => {
            match messages.iter().find(|m| role(m).is_empty()) {
                None => Ok(messages),
                Some(message) => Err(Problem::Wrong(format!(
                    "key \"{key}\": expected messages with \"role\", got {}",
                    shorten(message)
                ))),
            }
        }
        other => Err(Problem::Wrong(format!(
            "key \"{key}\": expected a list of messages, got {}",
            shorten(&other)
        ))),
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn shorten(value: &Value) -> String {
    const MOST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(row: Value, keys: &Keys) -> Result<Recorded> {
        let Value::Object(mut row) = row else { panic!("a row is an object") };
        if keys.kind == slime_config::Kind::Conversations {
            conversation(&mut row, keys)
        } else {
            preference(&mut row, keys)
        }
    }

    fn chat(row: Value) -> Result<Recorded> {
        read(row, &Keys { kind: slime_config::Kind::Conversations, ..Keys::default() })
    }

    fn pair(row: Value) -> Result<Recorded> {
        read(row, &Keys { kind: slime_config::Kind::Preferences, ..Keys::default() })
    }

    fn recorded(prompt: Value, responses: Value) -> Recorded {
        let Value::Array(responses) = responses else { panic!("a list") };
        Recorded { prompt, responses, margin: None }
    }

    fn says(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn conversations_are_messages_or_a_prompt_and_its_completion() {
        let (user, answer, more) = (says("user", "q"), says("assistant", "a"), says("user", "r"));
        let whole = recorded(json!([user]), json!([[answer, more, answer]]));
        assert_eq!(chat(json!({"messages": [user, answer, more, answer]})).unwrap(), whole);
        assert_eq!(chat(json!({"prompt": [user], "completion": [answer, more, answer]})).unwrap(), whole);
        assert_eq!(
            chat(json!({"prompt": "q", "completion": "a"})).unwrap(),
            recorded(json!("q"), json!(["a"]))
        );
        assert_eq!(chat(json!({"messages": [answer]})).unwrap(), recorded(json!([]), json!([[answer]])));
    }

    #[test]
    fn preferences_have_their_prompt_beside_or_before_the_responses() {
        let (user, a, b) = (says("user", "q"), says("assistant", "a"), says("assistant", "b"));
        let apart = recorded(json!([user]), json!([[a], [b]]));
        assert_eq!(pair(json!({"prompt": [user], "chosen": [a], "rejected": [b]})).unwrap(), apart);
        assert_eq!(pair(json!({"chosen": [user, a], "rejected": [user, b]})).unwrap(), apart);
        assert_eq!(pair(json!({"prompt": "q", "chosen": [user, a], "rejected": [user, b]})).unwrap(), apart);
        let text = recorded(json!("q"), json!(["a", [b]]));
        assert_eq!(pair(json!({"prompt": "q", "chosen": "a", "rejected": [b]})).unwrap(), text);
        let found = pair(json!({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 0.5})).unwrap();
        assert_eq!(found.margin, Number::from_f64(0.5));
        let keys = Keys { kind: slime_config::Kind::Preferences, is_chat: false, ..Keys::default() };
        let found = read(json!({"chosen": "Sky is blue.", "rejected": "Sky is red."}), &keys).unwrap();
        assert_eq!(found, recorded(json!("Sky is"), json!([" blue.", " red."])));
    }

    #[test]
    fn what_cannot_be_trained_on_is_named() {
        let missing = |key: &str, option| Problem::Missing(key.to_owned(), option);
        let (user, a, b) = (says("user", "q"), says("assistant", "a"), says("assistant", "b"));
        assert_eq!(chat(json!({"text": "x"})), Err(missing("messages", "messages_key")));
        assert_eq!(chat(json!({"prompt": "x"})), Err(missing("completion", "completion_key")));
        assert_eq!(pair(json!({"prompt": "x", "chosen": "a"})), Err(missing("rejected", "rejected_key")));
        let of = |result: Result<Recorded>| match result {
            Err(Problem::Wrong(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let chats = [
            (json!({"messages": [user, user]}), "expected a message of the assistant, got only user, user"),
            (json!({"messages": "x"}), "key \"messages\": expected a list of messages, got \"x\""),
            (
                json!({"messages": [{"from": "gpt"}]}),
                "expected messages with \"role\", got {\"from\":\"gpt\"}",
            ),
            (json!({"prompt": "x", "completion": ""}), "key \"completion\": expected a response"),
            (
                json!({"prompt": "x", "completion": [user, a]}),
                "the first message to be the assistant's, got user",
            ),
        ];
        for (row, reason) in chats {
            let got = of(chat(row));
            assert!(got.contains(reason), "{got}");
        }
        let pairs = [
            (json!({"prompt": "x", "chosen": "a", "rejected": "a"}), "two different responses"),
            (
                json!({"chosen": [user, a], "rejected": [says("user", "other"), b]}),
                "differ from the first message",
            ),
            (
                json!({"chosen": [user, a], "rejected": [user]}),
                "key \"rejected\": expected message 2 (the first that differs) to be the assistant's, got nothing",
            ),
            (json!({"chosen": [user, a], "rejected": [user, user, b]}), "got user"),
            (json!({"chosen": "x a", "rejected": "x b"}), "data.apply_chat_template = false"),
            (json!({"chosen": "x a", "rejected": [user, b]}), "got one of each"),
            (
                json!({"prompt": "x", "chosen": "a", "rejected": "b", "margin": "big"}),
                "key \"margin\": expected a number, got \"big\"",
            ),
        ];
        for (row, reason) in pairs {
            let got = of(pair(row));
            assert!(got.contains(reason), "{got}");
        }
        let keys = Keys { kind: slime_config::Kind::Preferences, is_chat: false, ..Keys::default() };
        for (chosen, rejected) in [("blue", "red"), ("sky is", "sky is blue")] {
            let got = of(read(json!({"chosen": chosen, "rejected": rejected}), &keys));
            assert!(got.contains("do not begin so"), "{got}");
        }
    }
}
