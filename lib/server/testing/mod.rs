//! Tokenizers for tests.

pub mod server;

use serde_json::{Map, Value, json};
use slime_tokenizer::Tokenizer;

/// One token for each of the 29 letters from `A` on: that of the naive model.
pub fn letters() -> Tokenizer {
    tokenizer((0..29).map(|id| (char::from(b'A' + id).to_string(), u32::from(id))))
}

/// One token for each printable ASCII character but `!`'s place 2, which ends a text: 96 in all.
pub fn printable() -> Tokenizer {
    let byte = |id: u32| if id < 2 { id + 32 } else { id + 31 };
    let spelling = |byte: u32| if byte == 32 { 'Ġ'.to_string() } else { char::from(byte as u8).to_string() };
    let tokens = (0..96).map(move |id| (if id == 2 { "</s>".to_owned() } else { spelling(byte(id)) }, id));
    tokenizer(tokens)
}

/// The letters of the naive model and words of tool calls in their place.
pub fn calling() -> Tokenizer {
    let words = ["<tool_call>", "</tool_call>", "{\"name\":\"f\",", "\"arguments\":{}}", "x"];
    tokenizer((0..29).map(|id| {
        (
            words.get(id as usize).map_or_else(|| format!("{}", char::from(b'A' + id)), |w| (*w).to_owned()),
            u32::from(id),
        )
    }))
}

fn tokenizer(tokens: impl Iterator<Item = (String, u32)>) -> Tokenizer {
    let vocab: Map<String, Value> = tokens.map(|(token, id)| (token, id.into())).collect();
    let end = vocab.get("</s>").map(|id| {
        json!({"id": id, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    });
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": end.iter().collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}{{ m.content }};{% endfor %}";
    let config = json!({"eos_token": end.map(|_| "</s>"), "chat_template": template});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::from_dir(dir.path()).unwrap()
}
