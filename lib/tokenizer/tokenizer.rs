//! A tokenizer directory in Hugging Face form.

use crate::special::Special;
use crate::{ChatTemplate, DecodeStream, Error, Result};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Text to ids and back.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    dir: PathBuf,
    pub(crate) inner: tokenizers::Tokenizer,
    special: Special,
    eos_ids: Vec<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and where they exist `tokenizer_config.json`, `special_tokens_map.json`,
    /// `chat_template.jinja`, `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// A file that is missing or not what it should be, by name.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref().to_owned();
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| Error::File { path, reason: error.to_string() })?;
        // Stored settings of whoever saved it last; prompts are neither cut nor filled up here.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| codec("encode", &error))?;
        let special = Special::from_dir(&dir)?;
        let mut eos_ids = special.eos_ids.clone();
        let eos_token = special.tokens.get("eos_token").and_then(Value::as_str);
        eos_ids.extend(eos_token.and_then(|token| inner.token_to_id(token)));
        eos_ids.sort_unstable();
        eos_ids.dedup();
        Ok(Self { dir, inner, special, eos_ids })
    }

    /// The ids of a text. Special tokens in it are recognised; none is added.
    ///
    /// # Errors
    /// [`Error::Codec`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, false)
    }

    /// The ids of a text with the special tokens the tokenizer puts around it (such as a first `<s>`).
    ///
    /// # Errors
    /// [`Error::Codec`].
    pub fn encode_with_special_tokens(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, true)
    }

    fn ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, add_special_tokens);
        Ok(encoding.map_err(|error| codec("encode", &error))?.get_ids().to_vec())
    }

    /// The ids of a text as [`Tokenizer::encode`] gives them, and the bytes of the text that each stands for.
    ///
    /// # Errors
    /// [`Error::Codec`].
    pub(crate) fn encode_with_offsets(&self, text: &str) -> Result<tokenizers::Encoding> {
        self.inner.encode(text, false).map_err(|error| codec("encode", &error))
    }

    /// The same tokenizer for [`Tokenizer::encode`] alone: what would be done to its ids, such as taking spaces out of
    /// their places, is not done.
    pub(crate) fn without_post_processor(&self) -> Self {
        let mut plain = self.clone();
        plain.inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        plain
    }

    /// The text of ids; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Codec`].
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.inner.decode(ids, skip_special_tokens).map_err(|error| codec("decode", &error))
    }

    /// Where each token begins in `text`, in bytes, when the ids decode to it (special tokens said or skipped); a token
    /// that adds no character yet begins where the character will. `None` when they decode to something else.
    ///
    /// # Errors
    /// [`Error::Codec`].
    pub fn token_starts(&self, ids: &[u32], text: &str) -> Result<Option<Vec<usize>>> {
        for skip_special_tokens in [false, true] {
            let mut stream = self.decode_stream(skip_special_tokens);
            let (mut said, mut starts) = (String::new(), Vec::with_capacity(ids.len()));
            for id in ids {
                starts.push(said.len());
                said.push_str(&stream.push(*id)?);
            }
            said.push_str(&stream.finish()?);
            if said == text {
                return Ok(Some(starts));
            }
        }
        Ok(None)
    }

    /// Decodes a response token by token.
    pub fn decode_stream(&self, skip_special_tokens: bool) -> DecodeStream<'_> {
        DecodeStream::new(self, skip_special_tokens)
    }

    /// Renders chat messages with the model's template; `kwargs` are more variables for it.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`], or [`Error::ChatTemplate`] with what the template said.
    pub fn apply_chat_template(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        kwargs: &Map<String, Value>,
    ) -> Result<String> {
        let (template, variables) = self.template(kwargs)?;
        template.render(messages, tools, add_generation_prompt, &variables)
    }

    /// Renders a whole conversation, with the places of what its template marks as said by the assistant, in bytes.
    ///
    /// # Errors
    /// As [`Tokenizer::apply_chat_template`]; a message with a character that serves as mark.
    pub(crate) fn apply_chat_template_marked(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<(String, Vec<Range<usize>>)> {
        let (template, variables) = self.template(kwargs)?;
        template.render_marked(messages, tools, &variables)
    }

    /// The template with its variables.
    pub(crate) fn template(
        &self,
        kwargs: &Map<String, Value>,
    ) -> Result<(&ChatTemplate, Map<String, Value>)> {
        let template = self.special.chat_template.as_ref();
        let template = template.ok_or_else(|| Error::NoChatTemplate { path: self.dir.clone() })?;
        let mut variables = self.special.tokens.clone();
        variables.extend(kwargs.clone());
        Ok((template, variables))
    }

    /// The id of `eos_token`, which ends a text.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.token_to_id(self.special.tokens.get("eos_token")?.as_str()?)
    }

    /// Whether there is a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.special.chat_template.is_some()
    }

    /// What the chat template looks for and writes, for whoever reads responses; empty without one.
    pub fn chat_template_source(&self) -> String {
        self.special.chat_template.as_ref().map_or(String::new(), ChatTemplate::source)
    }

    /// The ids that end a response, in ascending order.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The id of a token as it is spelt.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// How many ids there are, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

fn codec(action: &'static str, error: &tokenizers::Error) -> Error {
    Error::Codec { action, reason: error.to_string() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A byte-level tokenizer of all 256 bytes, one merge ("h" + "i") and three special tokens.
    pub(crate) fn byte_level() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        // The alphabet GPT-2 gave to bytes: printable ones stand for themselves, the others follow 255.
        let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let mut next = 256;
        let mut vocab = Map::new();
        for byte in 0..256u32 {
            let letter = if printable(byte) { byte } else { next };
            next += u32::from(!printable(byte));
            vocab.insert(char::from_u32(letter).unwrap().to_string(), byte.into());
        }
        vocab.insert("hi".to_owned(), 256.into());
        let special = |id: u32, text: &str| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                                "use_regex": true});
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [
                special(257, "<s>"), special(258, "<|im_start|>"), special(259, "<|im_end|>")
            ],
            "normalizer": null,
            "pre_tokenizer": byte_level,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}
            },
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocab, "merges": ["h i"]}
        });
        write(&dir, "tokenizer.json", &tokenizer);
        let template = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        write(
            &dir,
            "tokenizer_config.json",
            &json!({"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "chat_template": template}),
        );
        write(&dir, "generation_config.json", &json!({"eos_token_id": [257, 259]}));
        dir
    }

    fn write(dir: &tempfile::TempDir, file: &str, value: &Value) {
        std::fs::write(dir.path().join(file), value.to_string()).unwrap();
    }

    #[test]
    fn text_comes_back_and_special_tokens_are_one_id() {
        let dir = byte_level();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("hi<|im_end|>").unwrap(), [256, 259]);
        assert_eq!(tokenizer.encode_with_special_tokens("hi").unwrap(), [257, 256]);
        for text in ["", "hi there", "é漢🙂\n\t \u{0}", "<|im_start|>user\nx<|im_end|>"] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
        assert_eq!(tokenizer.decode(&[256, 259], true).unwrap(), "hi");
        assert_eq!(tokenizer.vocab_size(), 260);
    }

    #[test]
    fn end_ids_come_from_all_files() {
        let dir = byte_level();
        assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().eos_ids(), [257, 259]);
        std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();
        assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().eos_ids(), [259]);
        write(&dir, "config.json", &json!({"eos_token_id": 258}));
        assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().eos_ids(), [258, 259]);
    }

    #[test]
    fn templates_know_the_special_tokens_and_a_jinja_file_goes_first() {
        let dir = byte_level();
        let messages = [json!({"role": "user", "content": "hi"})];
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let text = tokenizer.apply_chat_template(&messages, None, true, &Map::new()).unwrap();
        assert_eq!(text, "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        std::fs::write(dir.path().join("chat_template.jinja"), "{{ eos_token }}{{ think }}").unwrap();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let kwargs = json!({"think": 1});
        let text = tokenizer.apply_chat_template(&messages, None, true, kwargs.as_object().unwrap()).unwrap();
        assert_eq!(text, "<|im_end|>1");
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        let dir = byte_level();
        write(&dir, "tokenizer_config.json", &json!({}));
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        assert!(!tokenizer.has_chat_template());
        let error = tokenizer.apply_chat_template(&[], None, true, &Map::new()).unwrap_err();
        assert!(error.to_string().contains("no chat template\nhint: "), "{error}");
        std::fs::write(dir.path().join("config.json"), "{").unwrap();
        std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();
        let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains("config.json: not JSON"), "{error}");
        std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
        let error = Tokenizer::from_dir(dir.path()).unwrap_err();
        assert_eq!(error.exit_code(), 66);
        assert!(error.to_string().contains("tokenizer.json: "), "{error}");
    }

    #[test]
    fn tokens_begin_where_their_text_does() {
        let dir = byte_level();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        let ids = [256, 0xc3, 0xa9, u32::from(b'a'), 259];
        let starts = |text: &str| tokenizer.token_starts(&ids, text).unwrap();
        assert_eq!(starts("hi\u{e9}a"), Some(vec![0, 2, 2, 4, 5]));
        assert_eq!(starts("hi\u{e9}a<|im_end|>"), Some(vec![0, 2, 2, 4, 5]));
        assert_eq!(starts("ho"), None);
    }
}
