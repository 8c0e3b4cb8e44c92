//! Calls of tools in a response: found in its text as it comes, by the spelling the model was trained on.

mod demand;
mod glm;
mod hermes;
mod llama3;

pub use demand::demand;

use serde_json::Value;

use crate::text::beginning_of_a_stop;

/// How a model spells calls of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// JSON between `<tool_call>` and `</tool_call>` (Hermes, Qwen).
    Hermes,
    /// The whole response is JSON with `name` and `parameters` (Llama 3).
    Llama3,
    /// A name and pairs of `<arg_key>` and `<arg_value>` between `<tool_call>` and `</tool_call>` (GLM-4.5).
    Glm,
}

impl Family {
    /// What a chat template shows of it; Hermes' where it shows nothing.
    pub fn of(template: &str) -> Self {
        if template.contains("<arg_key>") {
            Self::Glm
        } else if !template.contains("<tool_call>")
            && (template.contains("<|python_tag|>") || template.contains("\"parameters\""))
        {
            Self::Llama3
        } else {
            Self::Hermes
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Llama3 => "llama3",
            Self::Glm => "glm",
        }
    }

    /// The family of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Hermes, Self::Llama3, Self::Glm].into_iter().find(|family| family.name() == name)
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: String,
}

/// A piece of a response.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// What is said.
    pub content: String,
    /// What is called.
    pub calls: Vec<ToolCall>,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Finds calls in text that comes piece by piece. What looks like a call and is none stays text.
#[derive(Debug)]
pub struct ToolParser {
    family: Family,
    tools: Vec<Value>,
    held: String,
    /// The held text begins with an opening mark.
    is_inside: bool,
    has_called: bool,
    /// Of Llama's: the response began with something that is no call.
    is_prose: bool,
}

impl ToolParser {
    /// A parser for responses that may call these tools (`OpenAI`'s form).
    pub fn new(family: Family, tools: &[Value]) -> Self {
        let (tools, held) = (tools.to_vec(), String::new());
        Self { family, tools, held, is_inside: false, has_called: false, is_prose: false }
    }

    /// Takes more text and returns what has become certain.
    pub fn push(&mut self, delta: &str) -> Piece {
        self.held += delta;
        let mut piece = Piece::default();
        if self.family == Family::Llama3 {
            if !self.is_prose && llama3::may_begin(&self.held) {
                return piece;
            }
            self.is_prose = true;
            piece.content = std::mem::take(&mut self.held);
            return piece;
        }
        loop {
            if self.is_inside {
                let Some(end) = self.held.find(CLOSE) else { return piece };
                let block: String = self.held.drain(..end + CLOSE.len()).collect();
                self.is_inside = false;
                self.take_block(&block, &mut piece);
            } else if let Some(start) = self.held.find(OPEN) {
                let before: String = self.held.drain(..start).collect();
                self.say(&before, &mut piece);
                self.is_inside = true;
            } else {
                let certain = self.held.len() - beginning_of_a_stop(&self.held, &[OPEN]);
                let before: String = self.held.drain(..certain).collect();
                self.say(&before, &mut piece);
                return piece;
            }
        }
    }

    /// The response has ended: what was held is a call or text.
    pub fn finish(&mut self) -> Piece {
        let mut piece = Piece::default();
        let held = std::mem::take(&mut self.held);
        if self.family == Family::Llama3 && !self.is_prose {
            match llama3::parse(&held, &self.tools) {
                Some(calls) => piece.calls = calls,
                None => piece.content = held,
            }
        } else if self.is_inside {
            // A stop string may have taken the closing mark.
            self.take_block(&held, &mut piece);
        } else {
            self.say(&held, &mut piece);
        }
        piece
    }

    fn take_block(&mut self, block: &str, piece: &mut Piece) {
        let inner = block.strip_prefix(OPEN).unwrap_or(block);
        let inner = inner.strip_suffix(CLOSE).unwrap_or(inner);
        let call = match self.family {
            Family::Glm => glm::parse(inner, &self.tools),
            _ => hermes::parse(inner),
        };
        match call.filter(|call| self.is_tool(&call.name)) {
            Some(call) => {
                self.has_called = true;
                piece.calls.push(call);
            }
            None => piece.content += block,
        }
    }

    /// White space around calls belongs to their spelling.
    fn say(&mut self, text: &str, piece: &mut Piece) {
        if !(self.has_called && text.trim().is_empty()) {
            piece.content += text;
        }
    }

    fn is_tool(&self, name: &str) -> bool {
        function(&self.tools, name).is_some()
    }
}

/// The function of that name among tools.
fn function<'a>(tools: &'a [Value], name: &str) -> Option<&'a Value> {
    let functions = tools.iter().filter_map(|tool| tool.get("function"));
    functions.into_iter().find(|function| function.get("name").and_then(Value::as_str) == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Vec<Value> {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}})
        };
        vec![tool("weather"), tool("news")]
    }

    fn call(name: &str, arguments: &Value) -> ToolCall {
        ToolCall { name: name.to_owned(), arguments: arguments.to_string() }
    }

    /// What a text holds, pushed letter by letter.
    fn parse(family: Family, text: &str) -> Piece {
        let mut parser = ToolParser::new(family, &tools());
        let mut whole = Piece::default();
        let letters: Vec<String> = text.chars().map(String::from).collect();
        for piece in letters.iter().map(|letter| parser.push(letter)).collect::<Vec<_>>() {
            whole.content += &piece.content;
            whole.calls.extend(piece.calls);
        }
        let rest = parser.finish();
        whole.content += &rest.content;
        whole.calls.extend(rest.calls);
        let mut at_once = ToolParser::new(family, &tools());
        let (first, last) = (at_once.push(text), at_once.finish());
        assert_eq!(first.content + &last.content, whole.content, "pieces do not matter");
        assert_eq!([first.calls, last.calls].concat(), whole.calls);
        whole
    }

    #[test]
    fn hermes_calls_are_found_between_text() {
        let text = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n\
                    <tool_call>{\"name\": \"news\", \"arguments\": \"{\\\"days\\\": 2}\"}</tool_call>";
        let piece = parse(Family::Hermes, text);
        assert_eq!(piece.content, "Let me see.\n");
        assert_eq!(
            piece.calls,
            [call("weather", &json!({"city": "Rome"})), call("news", &json!({"days": 2}))]
        );
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a <b and <tool_cal then",
            "<tool_call>{broken</tool_call>!",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
            "<tool_call>\n{\"name\": \"weather\"",
        ] {
            assert_eq!(parse(Family::Hermes, text), Piece { content: text.to_owned(), calls: Vec::new() });
        }
        for text in
            ["{\"a\": 1}", "{\"name\": \"weather\"", "Hello {", "{\"name\": \"unknown\", \"parameters\": {}}"]
        {
            assert_eq!(parse(Family::Llama3, text), Piece { content: text.to_owned(), calls: Vec::new() });
        }
        let text = "<tool_call>unknown\n</tool_call>";
        assert_eq!(parse(Family::Glm, text).content, text);
    }

    #[test]
    fn llama_calls_are_the_whole_response() {
        let one = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}";
        assert_eq!(parse(Family::Llama3, one).calls, [call("weather", &json!({"city": "Rome"}))]);
        let two = format!("<|python_tag|>{one}; {{\"name\": \"news\", \"arguments\": {{}}}}");
        let piece = parse(Family::Llama3, &two);
        assert_eq!((piece.calls.len(), piece.content.as_str()), (2, ""));
    }

    #[test]
    fn glm_values_are_text_or_json_as_the_schema_says() {
        let text = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n\
                    <arg_value>3</arg_value>\n</tool_call>";
        assert_eq!(parse(Family::Glm, text).calls, [call("weather", &json!({"city": "12", "days": 3}))]);
    }

    #[test]
    fn templates_tell_the_family() {
        assert_eq!(Family::of("{{ '<tool_call>' }}<arg_key>"), Family::Glm);
        assert_eq!(Family::of("<tool_call> {\"name\"} \"parameters\""), Family::Hermes);
        assert_eq!(Family::of("{\"name\": x, \"parameters\": y}"), Family::Llama3);
        assert_eq!(Family::of(""), Family::Hermes);
        for family in [Family::Hermes, Family::Llama3, Family::Glm] {
            assert_eq!(Family::from_name(family.name()), Some(family));
        }
    }
}
