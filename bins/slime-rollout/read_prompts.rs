//! Prompts from a file, stdin or an environment, with recorded responses or without, and their tokens.

use std::fs::File;
use std::io::stdin;

use serde_json::{Map, Value, json};
use slime_cli::Failure;
use slime_config::{Data, RunConfig};
use slime_environment::{Prompt, PromptFile, PromptSource, keys, train_source};
use slime_record::PromptContent;
use slime_tokenizer::Tokenizer;

use crate::failure;

/// The rows to go through once: a file in its own order, or the first `num_prompts` of an environment.
pub struct Prompts {
    source: Box<dyn PromptSource>,
    len: u64,
    /// The file that stdin became, which people know as stdin.
    path: Option<String>,
}

impl Prompts {
    /// Opens what `[data]` names.
    pub fn open(config: &RunConfig, num_prompts: Option<u64>) -> Result<Self, Failure> {
        let (source, path): (Box<dyn PromptSource>, _) = match config.data.prompts.as_deref() {
            Some("-") => {
                let Stdin { prompts, path } = Stdin::open(&config.data)?;
                (Box::new(prompts), Some(path))
            }
            Some(spec) => {
                (Box::new(PromptFile::open(spec, keys(&config.data), None).map_err(failure!())?), None)
            }
            None => (train_source(config).map_err(failure!())?, None),
        };
        let Some(len) = num_prompts.or(source.len()) else {
            return Err(Failure::usage("the prompts have no end").with_hint("--num-prompts 8"));
        };
        let len = source.len().map_or(len, |all| all.min(len));
        Ok(Self { source, len, path })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// The prompt at a position below [`Prompts::len`].
    pub fn get(&self, position: u64) -> Result<Prompt, Failure> {
        let prompt = self.source.prompt(position).map_err(failure!());
        prompt.map_err(|failure| named(failure, self.path.as_deref().unwrap_or("stdin")))
    }

    /// All of them, in order.
    pub fn into_iter(self) -> impl Iterator<Item = Result<Prompt, Failure>> {
        (0..self.len).map(move |position| self.get(position))
    }
}

/// Stdin as a file of that name, since rows are read when they are drawn. The open file outlives its name.
struct Stdin {
    prompts: PromptFile,
    path: String,
}

impl Stdin {
    fn open(data: &Data) -> Result<Self, Failure> {
        let failed = |error| Failure::create("a temporary file", &error);
        let folder = tempfile::tempdir().map_err(failed)?;
        let path = folder.path().join("stdin");
        let mut file = File::create(&path).map_err(failed)?;
        std::io::copy(&mut stdin(), &mut file).map_err(|error| Failure::io("stdin", &error))?;
        let path = path.display().to_string();
        let prompts = PromptFile::open(&path, keys(data), None);
        let prompts = prompts.map_err(failure!()).map_err(|failure| named(failure, &path))?;
        Ok(Self { prompts, path })
    }
}

/// People know the file as stdin.
fn named(failure: Failure, path: &str) -> Failure {
    Failure { message: failure.message.replace(path, "stdin"), ..failure }
}

/// The prompt's tokens: through the chat template where `data.apply_chat_template` asks for it.
pub fn tokens(
    tokenizer: &Tokenizer,
    content: PromptContent,
    prompt: &Prompt,
    data: &Data,
) -> Result<Vec<u32>, Failure> {
    let encoded = match content {
        PromptContent::Text(text) if !data.apply_chat_template => tokenizer.encode_with_special_tokens(&text),
        PromptContent::Messages(_) if !data.apply_chat_template => {
            return Err(Failure::data("chat messages need a chat template")
                .with_hint("--set data.apply_chat_template=true"));
        }
        content => {
            let tools: Option<Value> =
                prompt.tools.as_deref().map(serde_json::from_str).transpose().map_err(Failure::data)?;
            let text = tokenizer
                .apply_chat_template(&content.into_messages(), tools.as_ref(), true, &kwargs(data)?)
                .map_err(failure!())?;
            tokenizer.encode(&text)
        }
    };
    encoded.map_err(failure!())
}

/// `data.chat_template_kwargs` as a template takes them.
pub fn kwargs(data: &Data) -> Result<Map<String, Value>, Failure> {
    match serde_json::to_value(&data.chat_template_kwargs).map_err(Failure::data)? {
        Value::Object(kwargs) => Ok(kwargs),
        _ => Err(Failure::data("data.chat_template_kwargs: expected a table")),
    }
}

/// How many samples a group has, and how long they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupShape {
    pub n_samples_per_prompt: u32,
    pub max_response_len: u32,
}

impl GroupShape {
    /// As `[rollout]` says.
    pub fn of(config: &RunConfig) -> Result<Self, Failure> {
        let n_samples_per_prompt = config.batch().map_err(failure!())?.n_samples_per_prompt;
        Ok(Self { n_samples_per_prompt, max_response_len: config.rollout.max_response_len })
    }
}

/// A prompt as the step builder sends it to a replica, with the shape of its group.
pub fn to_body(prompt: &Prompt, shape: GroupShape) -> Value {
    json!({
        "n_samples_per_prompt": shape.n_samples_per_prompt,
        "max_response_len": shape.max_response_len,
        "prompt_id": prompt.prompt_id,
        "source": prompt.source,
        "prompt": prompt.prompt,
        "label": prompt.label,
        "metadata": prompt.metadata,
        "tools": prompt.tools,
        "responses": prompt.responses,
    })
}

/// Reads what [`to_body`] made.
pub fn from_body(body: &Value) -> Result<(Prompt, GroupShape), Failure> {
    let number = |key: &str| {
        let number = body.get(key).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| Failure::data(format!("an assigned prompt without {key}")))
    };
    let shape = GroupShape {
        n_samples_per_prompt: number("n_samples_per_prompt")?,
        max_response_len: number("max_response_len")?,
    };
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    let required =
        |key: &str| text(key).ok_or_else(|| Failure::data(format!("an assigned prompt without {key}")));
    let prompt = Prompt {
        prompt_id: required("prompt_id")?,
        source: required("source")?,
        prompt: required("prompt")?,
        label: text("label"),
        metadata: text("metadata"),
        tools: text("tools"),
        responses: serde_json::from_value(body.get("responses").cloned().unwrap_or_else(|| json!([])))
            .map_err(|error| {
                Failure::data(format!("an assigned prompt with responses that are no texts: {error}"))
            })?,
    };
    Ok((prompt, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assigned_prompt_comes_back_as_it_was() {
        let prompt = Prompt {
            prompt_id: "a:1".to_owned(),
            source: "a".to_owned(),
            prompt: "\"1 + 1\"".to_owned(),
            label: Some("2".to_owned()),
            metadata: Some("{\"x\": 1}".to_owned()),
            tools: None,
            responses: vec!["\"2\"".to_owned()],
        };
        let shape = GroupShape { n_samples_per_prompt: 3, max_response_len: 9 };
        assert_eq!(from_body(&to_body(&prompt, shape)), Ok((prompt, shape)));
        assert!(from_body(&json!({})).is_err());
    }
}
