//! Chat templates: Jinja with the settings, functions and filters Hugging Face gives them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::generation_block::{self, MARKS};
use crate::{Error, Result, clock, python_json};
use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

const NAME: &str = "chat_template";

/// A parsed chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    has_generation_blocks: bool,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] with the line Jinja stumbled over.
    pub fn new(source: &str) -> Result<Self> {
        Self::with_clock(source, clock::now)
    }

    /// A template whose `strftime_now` asks the given clock (seconds since 1970, UTC).
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn with_clock(source: &str, now: fn() -> u64) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| {
            clock::strftime(now(), &format)
                .map_err(|reason| minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        });
        let source = generation_block::translate(source);
        let has_generation_blocks = source.contains(MARKS[0].0);
        environment.add_template_owned(NAME, source).map_err(|e| refused(&e))?;
        Ok(Self { environment, has_generation_blocks })
    }

    /// The template as it is rendered.
    pub(crate) fn source(&self) -> String {
        self.environment.get_template(NAME).map_or(String::new(), |template| template.source().to_owned())
    }

    /// Whether the template marks what the assistant says, with `{% generation %}`.
    pub fn has_generation_blocks(&self) -> bool {
        self.has_generation_blocks
    }

    /// Renders messages; `variables` hold special tokens and whatever else the template asks for.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] with what the template said.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String> {
        self.render_with(messages, tools, add_generation_prompt, variables, &[])
    }

    /// The same for a whole conversation, with the places of what stands in `{% generation %}` blocks, in bytes.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`Error::Mark`] when a message holds one of the characters that mark the places.
    pub fn render_marked(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        variables: &Map<String, Value>,
    ) -> Result<(String, Vec<Range<usize>>)> {
        generation_block::refuse_marks(messages, tools)?;
        let text = self.render_with(messages, tools, false, variables, &MARKS)?;
        generation_block::take_marks(&text)
    }

    fn render_with(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
        marks: &[(&str, char)],
    ) -> Result<String> {
        let mut context: BTreeMap<&str, Jinja> =
            variables.iter().map(|(name, value)| (name.as_str(), Jinja::from_serialize(value))).collect();
        context.insert("messages", Jinja::from_serialize(messages));
        context.insert("add_generation_prompt", add_generation_prompt.into());
        context.insert("tools", Jinja::from_serialize(tools));
        // Retrieval templates test for it; Hugging Face always defines it.
        context.entry("documents").or_insert_with(|| Jinja::from(()));
        context.extend(marks.iter().map(|(name, mark)| (*name, Jinja::from(mark.to_string()))));
        let template = self.environment.get_template(NAME).map_err(|error| refused(&error))?;
        template.render(Jinja::from_serialize(&context)).map_err(|error| refused(&error))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn to_json(value: Jinja, options: Kwargs) -> Result<Jinja, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Text is never escaped to ASCII here, and keys keep their order: Hugging Face's defaults.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let text = python_json::dumps(&value, indent)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Jinja::from_safe_string(text))
}

fn refused(error: &minijinja::Error) -> Error {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    Error::ChatTemplate { reason: reason + &line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The template of SmolLM2-Instruct.
    const CHATML: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    fn render(template: &str, messages: &[Value], generate: bool) -> Result<String> {
        ChatTemplate::with_clock(template, || 951_826_154)?.render(messages, None, generate, &Map::new())
    }

    #[test]
    fn chatml_is_rendered_as_transformers_renders_it() {
        let user = json!({"role": "user", "content": "Compute 2 + 3. <é>"});
        assert_eq!(
            render(CHATML, std::slice::from_ref(&user), true).unwrap(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
             <|im_start|>user\nCompute 2 + 3. <é><|im_end|>\n<|im_start|>assistant\n"
        );
        let system = json!({"role": "system", "content": "Be brief."});
        let answer = json!({"role": "assistant", "content": "5"});
        assert_eq!(
            render(CHATML, &[system, user, answer], false).unwrap(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nCompute 2 + 3. <é><|im_end|>\n\
             <|im_start|>assistant\n5<|im_end|>\n"
        );
    }

    #[test]
    fn raise_exception_is_an_error_with_its_message() {
        let error = render("{{ raise_exception('roles must alternate') }}", &[], false).unwrap_err();
        assert_eq!(error.to_string(), "chat template: roles must alternate (line 1)");
        assert_eq!(error.exit_code(), 65);
    }

    #[test]
    fn strftime_now_asks_the_clock() {
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", &[], false).unwrap(), "29 Feb 2000");
    }

    #[test]
    fn tojson_keeps_order_and_python_spelling() {
        let template = ChatTemplate::new("{% for t in tools %}{{ t | tojson }}{% endfor %}").unwrap();
        let tools = json!([{"type": "function", "function": {"name": "f", "args": ["<a>", 1.5]}}]);
        assert_eq!(
            template.render(&[], Some(&tools), false, &Map::new()).unwrap(),
            r#"{"type": "function", "function": {"name": "f", "args": ["<a>", 1.5]}}"#
        );
        let indented = ChatTemplate::new("{{ tools | tojson(indent=2) }}").unwrap();
        let tools = json!([1]);
        assert_eq!(indented.render(&[], Some(&tools), false, &Map::new()).unwrap(), "[\n  1\n]");
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let template = "{% for m in messages %}\n    {% if m.content.startswith('a') %}\n{{ m.content.strip().split('|')[-1] }}\n    {% endif %}\n{% endfor %}\n";
        let message = json!({"role": "user", "content": "a|b "});
        assert_eq!(render(template, &[message], false).unwrap(), "b\n");
    }

    #[test]
    fn generation_tags_and_loop_controls_and_namespaces_are_understood() {
        let template = "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% if m.role == 'x' %}{% continue %}{% endif %}{%- generation %}{{ m.content }}{% endgeneration -%}{% set ns.n = ns.n + 1 %}{% endfor %}={{ ns.n }}";
        let messages = [
            json!({"role": "a", "content": "1"}),
            json!({"role": "x", "content": "2"}),
            json!({"role": "a", "content": "3"}),
        ];
        assert_eq!(render(template, &messages, false).unwrap(), "31=2");
    }

    #[test]
    fn places_of_generation_blocks_are_told_and_the_text_stays_the_same() {
        let source = "{% for m in messages %}\n  {% if m.role == 'assistant' %}\nA: {% generation %}{% set x = 1 %}{{ m.content }}.{% endgeneration %}\n!\n  {%- else %}\n[{{ m.content }}]\n  {%- generation -%}\n  \n  {%- endgeneration -%}\n  {% endif %}\n{% endfor %}\n{{ x }}";
        let template = ChatTemplate::new(source).unwrap();
        assert!(template.has_generation_blocks());
        let messages =
            [json!({"role": "user", "content": "é"}), json!({"role": "assistant", "content": "ü"})];
        let plain = template.render(&messages, None, false, &Map::new()).unwrap();
        let (text, spans) = template.render_marked(&messages, None, &Map::new()).unwrap();
        // What jinja2 with Hugging Face's extension renders; a name set in a block is not known behind it.
        assert_eq!(text, "[é]A: ü.!");
        assert_eq!(text, plain);
        let said: Vec<&str> = spans.into_iter().map(|span| &text[span]).collect();
        assert_eq!(said, ["", "ü."]);
        let mark = [json!({"role": "user", "content": [{"text": "a\u{fdd1}"}]})];
        let error = template.render_marked(&mark, None, &Map::new()).unwrap_err();
        assert!(error.to_string().contains("U+FDD1"), "{error}");
        assert!(!ChatTemplate::new("{{ generation }}").unwrap().has_generation_blocks());
    }

    #[test]
    fn variables_reach_the_template() {
        let template = ChatTemplate::new("{{ bos_token }}{{ enable_thinking }}{{ missing }}").unwrap();
        let variables = json!({"bos_token": "<s>", "enable_thinking": false});
        let text = template.render(&[], None, false, variables.as_object().unwrap()).unwrap();
        assert_eq!(text, "<s>False");
    }

    #[test]
    fn a_template_that_does_not_parse_names_its_line() {
        let error = ChatTemplate::new("a\n{% if %}").unwrap_err().to_string();
        assert!(error.ends_with("(line 2)"), "{error}");
    }
}
