//! Tokens and masks against those of Hugging Face (`tests/fixtures/make_chats.py`).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use slime_config::LossMask;

use super::{Chat, ChatEncoder};
use crate::Tokenizer;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/chats")
}

/// The fixtures' tokenizer with this template.
pub(super) fn tokenizer(template: &str) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let config = json!({"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": template});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::from_dir(dir.path()).unwrap()
}

/// The template without its marks, as it is found in most models.
fn unmarked(template: &str) -> String {
    let mut text = template.to_owned();
    for (open, close) in [("{% ", " %}"), ("{%- ", " -%}"), ("{%- ", " %}"), ("{%+ ", " -%}")] {
        for (word, instead) in [("generation", "if true"), ("endgeneration", "endif")] {
            text = text.replace(&format!("{open}{word}{close}"), &format!("{open}{instead}{close}"));
        }
    }
    text
}

#[test]
fn tokens_and_masks_are_those_of_hugging_face() {
    let golden = std::fs::read_to_string(fixtures().join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let (mut num_equal, mut num_refused) = (0, 0);
    for (name, template) in golden["templates"].as_object().unwrap() {
        let marked = tokenizer(template.as_str().unwrap());
        let plain = tokenizer(&unmarked(template.as_str().unwrap()));
        let generation = ChatEncoder::new(&marked, LossMask::Auto, Map::new()).unwrap();
        let prefix = ChatEncoder::new(&plain, LossMask::Auto, Map::new()).unwrap();
        assert_eq!((generation.rule(), prefix.rule()), ("generation", "prefix"));
        for case in golden["cases"].as_array().unwrap().iter().filter(|case| case["template"] == *name) {
            let about = case["about"].as_str().unwrap();
            let conversation = &golden["conversations"][about];
            let messages = conversation["messages"].as_array().unwrap();
            let chat = Chat { messages, num_prompt: 0, tools: conversation.get("tools") };
            let got = generation.encode(chat).unwrap();
            assert_eq!(json!(got.tokens), case["tokens"], "{name}: {about}");
            assert_eq!(json!(got.loss_mask), case["generation"], "{name}: {about}");
            if case["prefix"].is_null() {
                let error = prefix.encode(chat).unwrap_err().to_string();
                assert!(error.starts_with("message "), "{name}: {about}: {error}");
                num_refused += 1;
            } else {
                let got = prefix.encode(chat).unwrap();
                assert_eq!(json!(got.tokens), case["tokens"], "{name}: {about}");
                assert_eq!(json!(got.loss_mask), case["prefix"], "{name}: {about}");
                num_equal += 1;
            }
        }
    }
    assert!(num_equal >= 25 && num_refused >= 5, "{num_equal} and {num_refused}");
}
