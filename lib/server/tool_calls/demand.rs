//! `tool_choice` "required" or a named tool: the language of responses that call.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{Family, function};
use crate::{ApiError, ApiResult, Language};

/// The language of one or more calls of these tools, or of one call of the tool `only`.
///
/// # Errors
/// There is no such tool.
pub fn demand(family: Family, tools: &[Value], only: Option<&str>) -> ApiResult<Language> {
    let unknown = |message: String| ApiError::field("tool_choice", message);
    let functions: Vec<&Value> = match only {
        Some(name) => {
            let function = function(tools, name);
            vec![function.ok_or_else(|| unknown(format!("tool_choice: no tool is called {name:?}")))?]
        }
        None => tools.iter().filter_map(|tool| tool.get("function")).collect(),
    };
    if functions.is_empty() {
        return Err(unknown("tool_choice: expected tools to choose from".to_owned()));
    }
    let more = if only.is_some() { "" } else { " (\"\\n\" call)*" };
    let key = if family == Family::Llama3 { "parameters" } else { "arguments" };
    Ok(match family {
        Family::Llama3 => Language::JsonSchema(any(&functions, key)),
        Family::Hermes => Language::Lark(format!(
            "start: call{more}\ncall: \"<tool_call>\\n\" json \"\\n</tool_call>\"\njson: %json {}\n",
            any(&functions, key)
        )),
        Family::Glm => Language::Lark(glm(&functions, more)),
    })
}

fn name(function: &Value) -> &str {
    function.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn parameters(function: &Value) -> Value {
    function.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"}))
}

/// A schema of a call of any of the functions.
fn any(functions: &[&Value], key: &str) -> Value {
    let one = |function: &&Value| {
        let mut properties = Map::new();
        properties.insert("name".to_owned(), json!({"const": name(function)}));
        properties.insert(key.to_owned(), parameters(function));
        json!({"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": false})
    };
    match functions {
        [function] => one(function),
        functions => json!({"anyOf": functions.iter().map(one).collect::<Vec<_>>()}),
    }
}

/// Lark's rules for GLM's spelling; arguments come in the order of the schema.
fn glm(functions: &[&Value], more: &str) -> String {
    let mut rules = String::new();
    let mut calls = Vec::new();
    for (i, function) in functions.iter().enumerate() {
        let schema = parameters(function);
        let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut call = format!("{} ", json!(format!("<tool_call>{}\n", name(function))));
        for (j, (key, value)) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten().enumerate()
        {
            let is_text = value.get("type").is_some_and(|kind| kind == "string");
            let body = if is_text { "/[^<]*/".to_owned() } else { format!("%json {value}") };
            writeln!(rules, "value_{i}_{j}: {body}").expect("a string grows");
            let open = json!(format!("<arg_key>{key}</arg_key>\n<arg_value>"));
            let optional = if required.iter().any(|name| name == key) { "" } else { "?" };
            write!(call, "({open} value_{i}_{j} \"</arg_value>\\n\"){optional} ").expect("a string grows");
        }
        writeln!(rules, "call_{i}: {call} \"</tool_call>\"").expect("a string grows");
        calls.push(format!("call_{i}"));
    }
    format!("start: call{more}\ncall: {}\n{rules}", calls.join(" | "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Grammars;
    use crate::testing::printable;
    use crate::tool_calls::ToolParser;

    #[test]
    fn a_text_of_the_demanded_language_is_a_call() {
        let tools =
            [json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
            "properties": {"days": {"enum": [1, 2]}, "city": {"type": "string", "enum": ["Rome"]}},
            "required": ["days", "city"], "additionalProperties": false}}})];
        // This vocabulary has no newline.
        let tokenizer = Arc::new(printable());
        let grammars = Grammars::new(tokenizer.clone(), 96, vec![2]);
        for family in [Family::Hermes, Family::Glm, Family::Llama3] {
            for only in [None, Some("weather")] {
                let language = demand(family, &tools, only).unwrap();
                let language = match language {
                    Language::Lark(text) => Language::Lark(text.replace("\\n", "")),
                    other => other,
                };
                let constraint = grammars.compile(&language).unwrap();
                let mut state = constraint.0.begin();
                let mut tokens = Vec::new();
                for _ in 0..300 {
                    let allowed = state
                        .allowed()
                        .unwrap_or_else(|| panic!("{family:?} {language:?} {tokens:?}"))
                        .to_vec();
                    let is_allowed = |token: u32| allowed[token as usize / 32] >> (token % 32) & 1 == 1;
                    // Ends as soon as it may, and writes the last letter otherwise: no white space.
                    let token =
                        if is_allowed(2) { 2 } else { (0..96).rev().find(|&t| is_allowed(t)).unwrap() };
                    if token == 2 {
                        break;
                    }
                    state.accept(token);
                    tokens.push(token);
                    if tokens.len() > 200 && family == Family::Glm {
                        // Its text goes on for ever with the last letter: end it.
                        let end = tokenizer.encode("</arg_value></tool_call>").unwrap();
                        for &token in &end {
                            state.accept(token);
                        }
                        tokens.extend(end);
                        break;
                    }
                }
                let text = tokenizer.decode(&tokens, true).unwrap();
                let mut parser = ToolParser::new(family, &tools);
                let calls = [parser.push(&text).calls, parser.finish().calls].concat();
                assert_eq!(calls.len(), 1, "{family:?}: {text}");
                assert_eq!(calls[0].name, "weather");
                assert!(calls[0].arguments.contains("\"days\":2"), "{}", calls[0].arguments);
            }
        }
        assert!(demand(Family::Hermes, &tools, Some("news")).is_err());
        assert!(demand(Family::Hermes, &[], None).is_err());
    }
}
