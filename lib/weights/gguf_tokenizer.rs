//! The tokenizer inside a GGUF file as `tokenizer.json` and `tokenizer_config.json` of Hugging Face.

use serde_json::{Map, Value, json};

use crate::gguf::GgufValue;
use crate::{Error, Gguf, Result};

/// Token kinds of `tokenizer.ggml.token_type` (llama.cpp's `LLAMA_TOKEN_TYPE_*`).
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// The splitting of `Qwen2` and, with up to three digits together, of Llama 3 (their `tokenizer.json`).
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Gguf {
    /// The `tokenizer.json`: byte-level BPE with the added tokens of the file.
    ///
    /// # Errors
    /// The tokenizer is of another kind, splits text in a way that is not known, or a key is missing.
    pub fn tokenizer_json(&self) -> Result<Value> {
        let (tokens, kinds) = self.tokens()?;
        let merges = self.texts("tokenizer.ggml.merges");
        let merges = merges.ok_or_else(|| self.no_key("tokenizer.ggml.merges"))?;
        let merges = merges.iter().map(|merge| {
            let pair = merge.split_once(' ');
            pair.map(|(a, b)| json!([a, b])).ok_or_else(|| {
                Error::corrupt(self.path(), format!("tokenizer.ggml.merges: {merge:?} is no pair"))
            })
        });
        let merges = merges.collect::<Result<Vec<_>>>()?;
        let vocab: Map<String, Value> = tokens
            .iter()
            .enumerate()
            .filter(|(id, _)| kinds[*id] != UNUSED)
            .map(|(id, token)| ((*token).to_owned(), id.into()))
            .collect();
        let added: Vec<Value> = (0..tokens.len())
            .filter(|id| matches!(kinds[*id], CONTROL | USER_DEFINED))
            .map(|id| added_token(Some(id), tokens[id], kinds[id] == CONTROL))
            .collect();
        let splitting = self.splitting()?;
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": splitting.normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitting.pre_tokenizers},
            "post_processor": self.post_processor(&tokens)?,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": splitting.ignore_merges,
                "vocab": vocab,
                "merges": merges,
            },
        }))
    }

    /// The `tokenizer_config.json` with the special tokens and the chat template.
    ///
    /// # Errors
    /// A key is missing.
    pub fn tokenizer_config_json(&self) -> Result<Value> {
        let (tokens, kinds) = self.tokens()?;
        let mut config = Map::new();
        let decoder: Map<String, Value> = (0..tokens.len())
            .filter(|id| matches!(kinds[*id], CONTROL | USER_DEFINED))
            .map(|id| (id.to_string(), added_token(None, tokens[id], kinds[id] == CONTROL)))
            .collect();
        config.insert("added_tokens_decoder".to_owned(), decoder.into());
        for (key, name) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
            let token = self.special(name, &tokens)?;
            config.insert(format!("{key}_token"), token.map(|(_, token)| token).into());
        }
        config.insert("add_prefix_space".to_owned(), false.into());
        config.insert("clean_up_tokenization_spaces".to_owned(), false.into());
        let arch = self.text("general.architecture").unwrap_or_default();
        config.insert("model_max_length".to_owned(), self.unsigned(&format!("{arch}.context_length")).into());
        config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
        if let Some(template) = self.text("tokenizer.chat_template") {
            config.insert("chat_template".to_owned(), template.into());
        }
        Ok(Value::Object(config))
    }

    fn tokens(&self) -> Result<(Vec<&str>, Vec<i64>)> {
        let tokens = self.texts("tokenizer.ggml.tokens");
        let tokens = tokens.ok_or_else(|| self.no_key("tokenizer.ggml.tokens"))?;
        let Some(GgufValue::Array(kinds)) = self.get("tokenizer.ggml.token_type") else {
            return Err(self.no_key("tokenizer.ggml.token_type"));
        };
        let kind = |value: &GgufValue| match value {
            GgufValue::Signed(kind) => *kind,
            GgufValue::Unsigned(kind) => *kind as i64,
            _ => 0,
        };
        if kinds.len() != tokens.len() {
            let reason = format!("expected {} token types, got {}", tokens.len(), kinds.len());
            return Err(Error::corrupt(self.path(), reason));
        }
        Ok((tokens, kinds.iter().map(kind).collect()))
    }

    /// The id and text of a special token, if the file names one.
    fn special<'a>(&self, name: &str, tokens: &[&'a str]) -> Result<Option<(u64, &'a str)>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.unsigned(&key) else { return Ok(None) };
        let outside = || Error::corrupt(self.path(), format!("{key} is {id}, of {} tokens", tokens.len()));
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id)).ok_or_else(outside)?;
        Ok(Some((id, token)))
    }

    fn post_processor(&self, tokens: &[&str]) -> Result<Value> {
        if self.get("tokenizer.ggml.add_bos_token") != Some(&GgufValue::Bool(true)) {
            return Ok(Value::Null);
        }
        let bos = self.special("bos", tokens)?;
        let (id, bos) = bos.ok_or_else(|| self.no_key("tokenizer.ggml.bos_token_id"))?;
        let special = json!({"SpecialToken": {"id": bos, "type_id": 0}});
        let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
        Ok(json!({
            "type": "TemplateProcessing",
            "single": [special, sequence("A", 0)],
            "pair": [special, sequence("A", 0), special, sequence("B", 1)],
            "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
        }))
    }

    /// How text is split before the merges, by llama.cpp's name for it.
    fn splitting(&self) -> Result<Splitting> {
        let unsupported = |what: String, hint: &str| Error::Unsupported {
            path: self.path().to_owned(),
            what,
            hint: hint.to_owned(),
        };
        match self.text("tokenizer.ggml.model") {
            Some("gpt2") => {}
            other => {
                let what = format!("tokenizer {}", other.unwrap_or("(none)"));
                return Err(unsupported(
                    what,
                    "byte-level BPE (gpt2) is read; import the Hugging Face directory",
                ));
            }
        }
        let split = |regex: &str| {
            let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
            vec![split, byte_level(false)]
        };
        let digits = json!({"type": "Digits", "individual_digits": true});
        let (pre_tokenizers, normalizer, ignore_merges) = match self.text("tokenizer.ggml.pre") {
            Some("smollm" | "starcoder") => (vec![digits, byte_level(true)], Value::Null, false),
            Some("gpt-2") => (vec![byte_level(true)], Value::Null, false),
            Some("qwen2") => (split(QWEN2_SPLIT), json!({"type": "NFC"}), false),
            Some("llama-bpe") => (split(LLAMA3_SPLIT), Value::Null, true),
            other => {
                let what = format!("splitting of text {}", other.unwrap_or("(none)"));
                return Err(unsupported(what, "smollm, starcoder, gpt-2, qwen2 and llama-bpe are read"));
            }
        };
        Ok(Splitting { pre_tokenizers, normalizer, ignore_merges })
    }
}

struct Splitting {
    pre_tokenizers: Vec<Value>,
    normalizer: Value,
    ignore_merges: bool,
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn added_token(id: Option<usize>, content: &str, is_special: bool) -> Value {
    let mut token = Map::new();
    if let Some(id) = id {
        token.insert("id".to_owned(), id.into());
    }
    token.insert("content".to_owned(), content.into());
    for (key, value) in [
        ("single_word", false),
        ("lstrip", false),
        ("rstrip", false),
        ("normalized", false),
        ("special", is_special),
    ] {
        token.insert(key.to_owned(), value.into());
    }
    Value::Object(token)
}
