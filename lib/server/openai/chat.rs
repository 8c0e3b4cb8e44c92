//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::fields::{Fields, take};
use super::stream::{self, Told};
use super::{Counts, finish_reason, log_probs, matched_stop, messages};
use crate::app::{App, any_number};
use crate::gather::Gathering;
use crate::sampling::Sampling;
use crate::text::Sample;
use crate::tool_calls::{Piece, ToolCall, ToolParser, demand};
use crate::{ApiError, ApiResult, Wanted, body, sse};

/// Most likely tokens that `OpenAI`'s field may ask for.
const MAX_TOP: usize = 20;

/// What the answer holds beside the text.
struct Chat {
    app: Arc<App>,
    id: String,
    tools: Vec<Value>,
    has_log_probs: bool,
    has_token_ids: bool,
    includes_usage: bool,
    prompt: Vec<u32>,
}

/// `POST /v1/chat/completions`.
pub async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    let mut object = body::object(&app, request).await?;
    let said = take::<Vec<Value>>(&mut object, "messages")?;
    let said =
        messages::prepare(said.ok_or_else(|| ApiError::field("messages", "messages: expected them"))?)?;
    let tools = take::<Vec<Value>>(&mut object, "tools")?.unwrap_or_default();
    let choice = take::<Value>(&mut object, "tool_choice")?.unwrap_or_else(|| "auto".into());
    let has_log_probs = take::<bool>(&mut object, "logprobs")?.unwrap_or(false);
    let num_top = take::<usize>(&mut object, "top_logprobs")?.unwrap_or(0);
    let kwargs = take::<Map<String, Value>>(&mut object, "chat_template_kwargs")?.unwrap_or_default();
    let adds_prompt = take::<bool>(&mut object, "add_generation_prompt")?.unwrap_or(true);
    if num_top > MAX_TOP || (num_top > 0 && !has_log_probs) {
        let message = format!("top_logprobs: expected at most {MAX_TOP}, with logprobs = true");
        return Err(ApiError::field("top_logprobs", message));
    }
    let fields = Fields::parse(&app, object)?;
    let tools = if choice == "none" { Vec::new() } else { tools };
    let for_template = (!tools.is_empty()).then(|| Value::Array(tools.clone()));
    let text = app.tokenizer.apply_chat_template(&said, for_template.as_ref(), adds_prompt, &kwargs);
    let prompt =
        app.encode(text.map_err(|error| ApiError::field("messages", error.to_string()))?, false).await?;
    let mut sampling = fields.sampling(&app, None).await?;
    fields.fit(&app, &mut sampling, prompt.len());
    demand_call(&app, &fields, &mut sampling, &tools, &choice).await?;
    let Sampling { mut params, rules } = sampling;
    params.top_log_probs = num_top;
    let is_stream = fields.stream.unwrap_or(false);
    let wants_tokens = is_stream || num_top > 0;
    let id = fields.id("chatcmpl");
    let wanted =
        Wanted { rid: id.clone(), tokens: prompt.clone(), params, prompt_log_probs: None, wants_tokens };
    let runs = app.handle.submit(vec![wanted])?;
    let (has_token_ids, includes_usage) = (fields.return_token_ids, fields.includes_usage());
    let chat = Chat { app: app.clone(), id, tools, has_log_probs, has_token_ids, includes_usage, prompt };
    if !is_stream {
        let limit = app.config.request_timeout;
        return Ok(Json(sse::within(limit, chat.whole(&rules, runs)).await?).into_response());
    }
    Ok(sse::stream(move |sink| async move {
        let chat = Arc::new(chat);
        let counts = stream::all(app, chat.clone(), Arc::new(rules), runs, sink.clone()).await?;
        if chat.includes_usage {
            let mut last = chat.frame("chat.completion.chunk", Vec::new());
            last.insert("usage".to_owned(), counts.usage());
            sink.send(&Value::Object(last)).await?;
        }
        Ok(())
    }))
}

/// Keeps responses to calls where the choice of a tool says so.
async fn demand_call(
    app: &App,
    fields: &Fields,
    sampling: &mut Sampling,
    tools: &[Value],
    choice: &Value,
) -> ApiResult<()> {
    let only = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str);
    match choice.as_str() {
        Some("auto" | "none") => return Ok(()),
        Some("required") => {}
        _ if only.is_some() => {}
        _ => {
            let message = "tool_choice: expected \"auto\", \"none\", \"required\" or a named function";
            return Err(ApiError::field("tool_choice", message));
        }
    }
    if fields.has_language() {
        let message = "tool_choice: expected \"auto\" or \"none\" beside response_format, regex or ebnf";
        return Err(ApiError::field("tool_choice", message));
    }
    let language = demand(app.tool_calls, tools, only)?;
    sampling.params.constraint = Some(app.constraint(language).await?);
    Ok(())
}

impl Chat {
    fn frame(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut frame = Map::new();
        frame.insert("id".to_owned(), self.id.clone().into());
        frame.insert("object".to_owned(), object.into());
        frame.insert("created".to_owned(), (crate::app::now_s() as u64).into());
        frame.insert("model".to_owned(), self.app.config.model_name.clone().into());
        frame.insert("choices".to_owned(), choices.into());
        frame
    }

    /// The whole answer.
    async fn whole(&self, rules: &crate::text::TextRules, runs: Vec<crate::Running>) -> ApiResult<Value> {
        let (mut choices, mut counts) = (Vec::new(), Counts::default());
        let mut weight_version = Value::Null;
        for mut run in runs {
            let mut gathering = Gathering::new(&self.app.tokenizer, rules, run.num_samples);
            gathering.wait(&mut run, &self.app.handle.status).await?;
            counts.prompt += run.prompt_len;
            for (index, sample) in gathering.samples().enumerate() {
                counts.add(sample);
                weight_version = sample.weight_version.clone().into();
                choices.push(self.choice(index, sample));
            }
        }
        let mut frame = self.frame("chat.completion", choices);
        frame.insert("usage".to_owned(), counts.usage());
        frame.insert("metadata".to_owned(), json!({ "weight_version": weight_version }));
        if self.has_token_ids {
            frame.insert("prompt_token_ids".to_owned(), json!(self.prompt));
        }
        Ok(Value::Object(frame))
    }

    fn choice(&self, index: usize, sample: &Sample) -> Value {
        let Piece { content, calls } = if self.tools.is_empty() {
            Piece { content: sample.text.clone(), calls: Vec::new() }
        } else {
            let mut parser = ToolParser::new(self.app.tool_calls, &self.tools);
            let (first, last) = (parser.push(&sample.text), parser.finish());
            Piece { content: first.content + &last.content, calls: [first.calls, last.calls].concat() }
        };
        let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
        let mut message = json!({ "role": "assistant", "content": content });
        if !calls.is_empty() {
            let calls: Vec<Value> = calls.iter().enumerate().map(|(i, call)| told_call(i, call)).collect();
            message["tool_calls"] = calls.into();
        }
        let log_probs =
            if self.has_log_probs { log_probs::of_chat(&self.app.tokenizer, sample, 0) } else { Value::Null };
        let mut choice = json!({
            "index": index, "message": message, "logprobs": log_probs,
            "finish_reason": finish_reason(sample, !calls.is_empty()), "matched_stop": matched_stop(sample),
        });
        if self.has_token_ids {
            choice["token_ids"] = json!(sample.tokens);
        }
        choice
    }
}

fn told_call(index: usize, call: &ToolCall) -> Value {
    json!({
        "id": format!("call_{:016x}", any_number()), "type": "function", "index": index,
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

/// What of a sample has been told.
struct Memory {
    index: usize,
    has_begun: bool,
    num_told: usize,
    num_calls: usize,
    parser: Option<ToolParser>,
}

impl Told for Chat {
    type Memory = Memory;

    fn begin(&self, _: usize, index: usize) -> Memory {
        let parser = (!self.tools.is_empty()).then(|| ToolParser::new(self.app.tool_calls, &self.tools));
        Memory { index, has_begun: false, num_told: 0, num_calls: 0, parser }
    }

    fn events(&self, memory: &mut Memory, delta: &str, sample: &Sample) -> Vec<Value> {
        let mut events = Vec::new();
        let mut tell = |index: usize, delta: Value, finish: Value, more: Value| {
            let mut choice =
                json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish });
            if let (Some(choice), Value::Object(more)) = (choice.as_object_mut(), more) {
                choice.extend(more);
            }
            events.push(Value::Object(self.frame("chat.completion.chunk", vec![choice])));
        };
        if !std::mem::replace(&mut memory.has_begun, true) {
            tell(memory.index, json!({ "role": "assistant", "content": "" }), Value::Null, Value::Null);
        }
        let mut piece = match &mut memory.parser {
            Some(parser) => parser.push(delta),
            None => Piece { content: delta.to_owned(), calls: Vec::new() },
        };
        if let (Some(_), Some(parser)) = (sample.finish, &mut memory.parser) {
            let rest = parser.finish();
            piece.content += &rest.content;
            piece.calls.extend(rest.calls);
        }
        let has_new = sample.tokens.len() > memory.num_told;
        if !piece.content.is_empty() || (has_new && (self.has_log_probs || self.has_token_ids)) {
            let mut more = Map::new();
            if self.has_log_probs {
                let told = log_probs::of_chat(&self.app.tokenizer, sample, memory.num_told);
                more.insert("logprobs".to_owned(), told);
            }
            if self.has_token_ids {
                more.insert("token_ids".to_owned(), json!(sample.tokens.get(memory.num_told..)));
            }
            memory.num_told = sample.tokens.len();
            tell(memory.index, json!({ "content": piece.content }), Value::Null, Value::Object(more));
        }
        for call in &piece.calls {
            let call = told_call(memory.num_calls, call);
            memory.num_calls += 1;
            tell(memory.index, json!({ "tool_calls": [call] }), Value::Null, Value::Null);
        }
        if sample.finish.is_some() {
            let more = json!({ "matched_stop": matched_stop(sample) });
            tell(memory.index, json!({}), finish_reason(sample, memory.num_calls > 0), more);
        }
        events
    }
}
