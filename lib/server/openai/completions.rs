//! `/v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::fields::{Fields, take};
use super::stream::{self, Told};
use super::{Counts, finish_reason, log_probs, matched_stop};
use crate::app::App;
use crate::gather::{Gathering, PromptLogProbs};
use crate::sampling::{Sampling, refuse};
use crate::text::{Sample, TextRules};
use crate::{ApiError, ApiResult, Running, Wanted, body, sse};

/// Response tokens where nothing is said, as `OpenAI` has it.
const MAX_TOKENS: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected text, token ids, or a list of either")]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

/// A prompt and its text, where that is told.
struct Prompt {
    tokens: Vec<u32>,
    echoed: Option<String>,
}

/// What the answer holds beside the text.
struct Completions {
    app: Arc<App>,
    id: String,
    prompts: Vec<Prompt>,
    num_samples: usize,
    has_log_probs: bool,
    has_token_ids: bool,
}

/// `POST /v1/completions`.
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    let mut object = body::object(&app, request).await?;
    let prompts = take::<Prompts>(&mut object, "prompt")?;
    let prompts = prompts.ok_or_else(|| ApiError::field("prompt", "prompt: expected text or token ids"))?;
    let num_top = take::<usize>(&mut object, "logprobs")?;
    let echoes = take::<bool>(&mut object, "echo")?.unwrap_or(false);
    let best_of = take::<u32>(&mut object, "best_of")?;
    let suffix = take::<String>(&mut object, "suffix")?;
    let fields = Fields::parse(&app, object)?;
    let num_samples = fields.n.unwrap_or(1) as usize;
    let is_stream = fields.stream.unwrap_or(false);
    refuse(&[
        ("best_of", best_of.is_some_and(|best_of| best_of as usize != num_samples)),
        ("suffix", suffix.is_some_and(|suffix| !suffix.is_empty())),
        ("echo with logprobs in events", is_stream && echoes && num_top.is_some()),
    ])?;
    let vocab_size = app.handle.status.limits.vocab_size;
    if num_top.is_some_and(|num_top| num_top > vocab_size) {
        let message = format!("logprobs: expected at most the vocabulary of {vocab_size}");
        return Err(ApiError::field("logprobs", message));
    }
    let prompts = resolve(&app, prompts, echoes).await?;
    let sampling = fields.sampling(&app, Some(MAX_TOKENS)).await?;
    let id = fields.id("cmpl");
    let wants_tokens = is_stream || num_top.is_some_and(|num_top| num_top > 0);
    let Sampling { mut params, rules } = sampling;
    params.top_log_probs = num_top.unwrap_or(0);
    let prompt_log_probs = num_top.filter(|_| echoes);
    let wanted = |(number, prompt): (usize, &Prompt)| {
        let rid = if prompts.len() == 1 { id.clone() } else { format!("{id}_{number}") };
        Wanted { rid, tokens: prompt.tokens.clone(), params: params.clone(), prompt_log_probs, wants_tokens }
    };
    let runs = app.handle.submit(prompts.iter().enumerate().map(wanted).collect())?;
    let (has_token_ids, includes_usage) = (fields.return_token_ids, fields.includes_usage());
    let has_log_probs = num_top.is_some();
    let answer = Completions { app: app.clone(), id, prompts, num_samples, has_log_probs, has_token_ids };
    if !is_stream {
        let limit = app.config.request_timeout;
        return Ok(Json(sse::within(limit, answer.whole(&rules, runs)).await?).into_response());
    }
    Ok(sse::stream(move |sink| async move {
        let answer = Arc::new(answer);
        let counts = stream::all(app, answer.clone(), Arc::new(rules), runs, sink.clone()).await?;
        if includes_usage {
            let mut last = answer.frame(Vec::new());
            last.insert("usage".to_owned(), counts.usage());
            sink.send(&Value::Object(last)).await?;
        }
        Ok(())
    }))
}

async fn resolve(app: &App, prompts: Prompts, echoes: bool) -> ApiResult<Vec<Prompt>> {
    let (texts, lists) = match prompts {
        Prompts::Text(text) => (vec![text], Vec::new()),
        Prompts::Texts(texts) => (texts, Vec::new()),
        Prompts::Ids(ids) => (Vec::new(), vec![ids]),
        Prompts::IdLists(lists) => (Vec::new(), lists),
    };
    let mut found = Vec::new();
    for text in texts {
        let tokens = app.encode(text.clone(), true).await?;
        found.push(Prompt { tokens, echoed: echoes.then_some(text) });
    }
    for tokens in lists {
        let text =
            || app.tokenizer.decode(&tokens, true).map_err(|error| ApiError::bad_request(error.to_string()));
        let echoed = if echoes { Some(text()?) } else { None };
        found.push(Prompt { tokens, echoed });
    }
    if found.is_empty() {
        return Err(ApiError::field("prompt", "prompt: expected at least one"));
    }
    Ok(found)
}

impl Completions {
    fn frame(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut frame = Map::new();
        frame.insert("id".to_owned(), self.id.clone().into());
        frame.insert("object".to_owned(), "text_completion".into());
        frame.insert("created".to_owned(), (crate::app::now_s() as u64).into());
        frame.insert("model".to_owned(), self.app.config.model_name.clone().into());
        frame.insert("choices".to_owned(), choices.into());
        frame
    }

    async fn whole(&self, rules: &TextRules, runs: Vec<Running>) -> ApiResult<Value> {
        let (mut choices, mut counts) = (Vec::new(), Counts::default());
        let mut weight_version = Value::Null;
        for (mut run, prompt) in runs.into_iter().zip(&self.prompts) {
            let mut gathering = Gathering::new(&self.app.tokenizer, rules, run.num_samples);
            gathering.wait(&mut run, &self.app.handle.status).await?;
            counts.prompt += run.prompt_len;
            for sample in gathering.samples() {
                counts.add(sample);
                weight_version = sample.weight_version.clone().into();
                choices.push(self.choice(choices.len(), sample, prompt, gathering.prompt.as_ref()));
            }
        }
        let mut frame = self.frame(choices);
        frame.insert("usage".to_owned(), counts.usage());
        frame.insert("metadata".to_owned(), json!({ "weight_version": weight_version }));
        Ok(Value::Object(frame))
    }

    fn choice(
        &self,
        index: usize,
        sample: &Sample,
        prompt: &Prompt,
        known: Option<&PromptLogProbs>,
    ) -> Value {
        let text = format!("{}{}", prompt.echoed.as_deref().unwrap_or_default(), sample.text);
        let log_probs = if self.has_log_probs {
            let echoed = known.map(|known| (prompt.tokens.as_slice(), known));
            log_probs::of_completion(&self.app.tokenizer, sample, 0, echoed, 0)
        } else {
            Value::Null
        };
        let mut choice = json!({
            "index": index, "text": text, "logprobs": log_probs,
            "finish_reason": finish_reason(sample, false), "matched_stop": matched_stop(sample),
        });
        if self.has_token_ids {
            choice["token_ids"] = json!(sample.tokens);
            choice["prompt_token_ids"] = json!(prompt.tokens);
        }
        choice
    }
}

/// What of a sample has been told.
struct Memory {
    index: usize,
    echoed: Option<String>,
    num_told: usize,
    num_letters: usize,
}

impl Told for Completions {
    type Memory = Memory;

    fn begin(&self, job: usize, index: usize) -> Memory {
        let echoed = self.prompts.get(job).and_then(|prompt| prompt.echoed.clone());
        Memory { index: job * self.num_samples + index, echoed, num_told: 0, num_letters: 0 }
    }

    fn events(&self, memory: &mut Memory, delta: &str, sample: &Sample) -> Vec<Value> {
        let text = memory.echoed.take().unwrap_or_default() + delta;
        let has_new = sample.tokens.len() > memory.num_told && (self.has_log_probs || self.has_token_ids);
        if text.is_empty() && !has_new && sample.finish.is_none() {
            return Vec::new();
        }
        let log_probs = if self.has_log_probs {
            let (start, offset) = (memory.num_told, memory.num_letters);
            log_probs::of_completion(&self.app.tokenizer, sample, start, None, offset)
        } else {
            Value::Null
        };
        let mut choice = json!({
            "index": memory.index, "text": text, "logprobs": log_probs, "finish_reason": finish_reason(sample, false),
        });
        if self.has_token_ids {
            choice["token_ids"] = json!(sample.tokens.get(memory.num_told..));
        }
        if sample.finish.is_some() {
            choice["matched_stop"] = matched_stop(sample);
        }
        memory.num_told = sample.tokens.len();
        memory.num_letters += text.chars().count();
        vec![Value::Object(self.frame(vec![choice]))]
    }
}
