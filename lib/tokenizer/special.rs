//! The files around tokenizer.json: special tokens, chat template, end-of-sequence ids.

use crate::{ChatTemplate, Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// Special tokens by the names templates call them.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What the files say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Special {
    /// Special tokens as text.
    pub tokens: Map<String, Value>,
    pub chat_template: Option<ChatTemplate>,
    /// Ids from `generation_config.json`, or else `config.json`.
    pub eos_ids: Vec<u32>,
}

impl Special {
    pub(crate) fn from_dir(dir: &Path) -> Result<Self> {
        let mut tokens = Map::new();
        let mut template = None;
        for file in ["special_tokens_map.json", "tokenizer_config.json"] {
            let config = read_json(&dir.join(file))?;
            for name in NAMES {
                if let Some(text) = token_text(config.get(name)) {
                    tokens.insert(name.to_owned(), text.into());
                }
            }
            template = template.or_else(|| default_template(config.get("chat_template")));
        }
        let jinja = dir.join("chat_template.jinja");
        if let Some(text) = read(&jinja)? {
            template = Some(text);
        }
        let mut eos_ids = Vec::new();
        for file in ["generation_config.json", "config.json"] {
            if eos_ids.is_empty() {
                eos_ids = ids(read_json(&dir.join(file))?.get("eos_token_id"));
            }
        }
        let chat_template = template
            .as_deref()
            .map(ChatTemplate::new)
            .transpose()
            .map_err(|error| Error::File { path: dir.to_owned(), reason: error.to_string() })?;
        Ok(Self { tokens, chat_template, eos_ids })
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

/// A JSON object; a file that is not there is an empty one.
fn read_json(path: &Path) -> Result<Map<String, Value>> {
    let Some(text) = read(path)? else { return Ok(Map::new()) };
    serde_json::from_str(&text)
        .map_err(|error| Error::File { path: path.to_owned(), reason: format!("not JSON: {error}") })
}

/// A token stands as text or as an object with `content`.
fn token_text(value: Option<&Value>) -> Option<String> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// One template, or several by name of which `default` is ours.
fn default_template(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry.get("name").is_some_and(|name| name == "default"));
            default?.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
}

fn ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}
