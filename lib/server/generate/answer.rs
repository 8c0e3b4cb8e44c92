//! One sample as `SGLang`'s clients read it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use slime_engine::{Drafting, FinishReason};

use crate::Running;
use crate::app::App;
use crate::gather::PromptLogProbs;
use crate::text::{Matched, Sample, TextRules};

/// What the answer to one prompt holds.
#[derive(Debug)]
pub struct Asked {
    /// How tokens become text.
    pub rules: TextRules,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Samples of it.
    pub num_samples: usize,
    /// Log-probs are told.
    pub has_log_probs: bool,
    /// From where in the prompt; none tells those of the response alone.
    pub log_prob_start: Option<usize>,
    /// The most likely tokens are told.
    pub num_top: usize,
    /// The tokens that truncation left to each choice are told, once a sample has ended.
    pub has_kept_ids: bool,
    /// Tokens are told with their text.
    pub has_text_of_tokens: bool,
}

impl Asked {
    /// Sample `index` of `run`, as far as it is known.
    pub fn answer(
        &self,
        app: &App,
        run: &Running,
        index: usize,
        sample: &Sample,
        prompt: Option<&PromptLogProbs>,
    ) -> Value {
        let id = if self.num_samples == 1 { run.rid.clone() } else { format!("{}_{index}", run.rid) };
        let weight_version =
            sample.weight_version.clone().unwrap_or_else(|| app.handle.status.weight_version());
        let mut meta = Map::new();
        meta.insert("id".to_owned(), id.into());
        meta.insert("finish_reason".to_owned(), finish_reason(sample));
        meta.insert("prompt_tokens".to_owned(), run.prompt_len.into());
        meta.insert("completion_tokens".to_owned(), sample.tokens.len().into());
        meta.insert("cached_tokens".to_owned(), sample.num_cached.into());
        if let Some(accept_length) = sample.drafting.accept_length() {
            let Drafting { num_verified, num_drafted, num_accepted } = sample.drafting;
            meta.insert("spec_verify_ct".to_owned(), num_verified.into());
            meta.insert("spec_draft_token_num".to_owned(), num_drafted.into());
            meta.insert("spec_accept_token_num".to_owned(), num_accepted.into());
            meta.insert("spec_accept_length".to_owned(), accept_length.into());
        }
        meta.insert("weight_version".to_owned(), weight_version.into());
        meta.insert("weight_versions".to_owned(), json!(sample.weight_versions));
        meta.insert("e2e_latency".to_owned(), run.arrived.elapsed().as_secs_f64().into());
        if self.has_kept_ids {
            let offsets = sample.kept.lens.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            });
            let offsets: Vec<u32> = std::iter::once(0).chain(offsets).collect();
            meta.insert("top_p_token_ids".to_owned(), int32(&sample.kept.ids).into());
            meta.insert("top_p_token_ids_offsets".to_owned(), int32(&offsets).into());
        }
        if self.has_log_probs {
            self.add_log_probs(app, &mut meta, sample, prompt);
        }
        json!({ "text": sample.text, "output_ids": sample.tokens, "meta_info": meta })
    }

    fn add_log_probs(
        &self,
        app: &App,
        meta: &mut Map<String, Value>,
        sample: &Sample,
        prompt: Option<&PromptLogProbs>,
    ) {
        let entry = |log_prob: Option<f32>, token: u32| {
            let text =
                self.has_text_of_tokens.then(|| app.tokenizer.decode(&[token], false).unwrap_or_default());
            json!([log_prob, token, text])
        };
        let list = |tops: &[(u32, f32)]| -> Value {
            tops.iter().map(|&(token, log_prob)| entry(Some(log_prob), token)).collect()
        };
        let output = sample.tokens.iter().zip(&sample.log_probs);
        let output: Value = output.map(|(&token, &log_prob)| entry(Some(log_prob), token)).collect();
        // The first token told of a prompt has no log-prob, wherever it stands.
        let start = self.log_prob_start.unwrap_or(self.prompt.len());
        let told = self.prompt.iter().enumerate().skip(start);
        let input: Value = told
            .clone()
            .map(|(position, &token)| {
                let before = position.checked_sub(1).filter(|_| position > start);
                entry(before.and_then(|before| prompt?.log_probs.get(before).copied()), token)
            })
            .collect();
        meta.insert("input_token_logprobs".to_owned(), input);
        meta.insert("output_token_logprobs".to_owned(), output);
        if self.num_top > 0 {
            let input: Value = told
                .map(|(position, _)| {
                    let before = position.checked_sub(1).filter(|_| position > start);
                    before.and_then(|before| prompt?.top.get(before)).map_or(Value::Null, |top| list(top))
                })
                .collect();
            meta.insert("input_top_logprobs".to_owned(), input);
            meta.insert("output_top_logprobs".to_owned(), sample.top.iter().map(|top| list(top)).collect());
        }
    }
}

/// Numbers as the base64 text of little-endian int32, the form in which the framework slime reads lists.
fn int32(values: &[u32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

fn finish_reason(sample: &Sample) -> Value {
    match (sample.finish, &sample.matched) {
        (None, _) => Value::Null,
        (Some(FinishReason::Stop), Some(Matched::Token(token))) => json!({"type": "stop", "matched": token}),
        (Some(FinishReason::Stop), Some(Matched::Text(text))) => json!({"type": "stop", "matched": text}),
        (Some(FinishReason::Stop), None) => json!({"type": "stop", "matched": null}),
        (Some(FinishReason::Length), _) => json!({"type": "length", "length": sample.tokens.len()}),
        (Some(FinishReason::Abort), _) => json!({"type": "abort", "message": "aborted before its end"}),
    }
}
