//! Log-probs as `OpenAI` tells them: those of chats and those of completions.

use serde_json::{Map, Value, json};
use slime_tokenizer::Tokenizer;

use crate::gather::PromptLogProbs;
use crate::text::Sample;

/// The text of one token; bytes that are no character alone become U+FFFD.
fn text_of(tokenizer: &Tokenizer, token: u32) -> String {
    tokenizer.decode(&[token], false).unwrap_or_default()
}

/// `logprobs` of a chat: the tokens from `start` on, each with its `num_top` most likely ones.
pub fn of_chat(tokenizer: &Tokenizer, sample: &Sample, start: usize) -> Value {
    let entry = |token: u32, log_prob: f32| {
        let text = text_of(tokenizer, token);
        json!({ "token": text, "logprob": log_prob, "bytes": text.as_bytes() })
    };
    let positions = sample.tokens.iter().zip(&sample.log_probs).enumerate().skip(start);
    let content: Vec<Value> = positions
        .map(|(position, (&token, &log_prob))| {
            let mut told = entry(token, log_prob);
            let top: Vec<Value> =
                top_at(sample, position).iter().map(|&(token, p)| entry(token, p)).collect();
            if let Some(told) = told.as_object_mut() {
                told.insert("top_logprobs".to_owned(), top.into());
            }
            told
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

fn top_at(sample: &Sample, position: usize) -> &[(u32, f32)] {
    sample.top.get(position).map_or(&[], Vec::as_slice)
}

/// `logprobs` of a completion: the tokens from `start` on; `offset` is where the text of the first begins.
pub fn of_completion(
    tokenizer: &Tokenizer,
    sample: &Sample,
    start: usize,
    echoed: Option<(&[u32], &PromptLogProbs)>,
    mut offset: usize,
) -> Value {
    let (mut tokens, mut log_probs, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut add = |token: u32, log_prob: Option<f32>, top: &[(u32, f32)]| {
        let text = text_of(tokenizer, token);
        offsets.push(offset);
        offset += text.chars().count();
        tokens.push(text);
        log_probs.push(log_prob);
        let top: Map<String, Value> = top.iter().map(|&(t, p)| (text_of(tokenizer, t), p.into())).collect();
        tops.push(if log_prob.is_some() { Value::Object(top) } else { Value::Null });
    };
    if let Some((prompt, known)) = echoed {
        for (position, &token) in prompt.iter().enumerate() {
            let before = position.checked_sub(1);
            let log_prob = before.and_then(|before| known.log_probs.get(before).copied());
            let top = before.and_then(|before| known.top.get(before)).map_or(&[][..], Vec::as_slice);
            add(token, log_prob, top);
        }
    }
    let positions = sample.tokens.iter().zip(&sample.log_probs).enumerate().skip(start);
    positions
        .for_each(|(position, (&token, &log_prob))| add(token, Some(log_prob), top_at(sample, position)));
    json!({ "tokens": tokens, "token_logprobs": log_probs, "top_logprobs": tops, "text_offset": offsets })
}
