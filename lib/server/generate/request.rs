//! The fields of `/generate`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::answer::Asked;
use crate::app::{App, any_number};
use crate::sampling::{OneOrMany, SamplingFields, refuse};
use crate::{ApiError, ApiResult, Wanted};

/// Fields of `SGLang` that say how a request is routed or logged, not what is computed.
const WITHOUT_EFFECT: [&str; 13] = [
    "background",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "cache_salt",
    "conversation_id",
    "data_parallel_rank",
    "extra_key",
    "log_metrics",
    "modalities",
    "no_logs",
    "routed_dp_rank",
    "routing_key",
];

/// Fields of `SGLang` that ask for what is not computed here.
const NOT_COMPUTED: [&str; 14] = [
    "audio_data",
    "custom_logit_processor",
    "image_data",
    "input_embeds",
    "lora_id",
    "lora_path",
    "require_reasoning",
    "return_bytes",
    "return_entropy",
    "return_hidden_states",
    "return_routed_experts",
    "session_params",
    "token_ids_logprob",
    "video_data",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    text: Option<OneOrMany<String>>,
    input_ids: Option<OneOrManyIds>,
    sampling_params: Option<OneOrMany<Map<String, Value>>>,
    rid: Option<OneOrMany<String>>,
    return_logprob: Option<OneOrMany<bool>>,
    logprob_start_len: Option<OneOrMany<i64>>,
    top_logprobs_num: Option<OneOrMany<u32>>,
    priority: Option<i64>,
    #[serde(default)]
    return_text_in_logprobs: bool,
    #[serde(default)]
    stream: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a list of token ids, or a list of such lists")]
enum OneOrManyIds {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

/// What a request wants, prompt by prompt.
pub struct Batch {
    /// For the engine.
    pub wanted: Vec<Wanted>,
    /// For the answers.
    pub asked: Vec<Asked>,
    /// Answers come as events.
    pub is_stream: bool,
    /// The answer is a list.
    pub is_list: bool,
}

enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Batch {
    /// Reads a request's fields.
    ///
    /// # Errors
    /// What is wrong, with the field's name.
    pub async fn parse(app: &App, mut object: Map<String, Value>) -> ApiResult<Self> {
        for name in WITHOUT_EFFECT {
            object.remove(name);
        }
        for name in NOT_COMPUTED {
            let value = object.remove(name).unwrap_or_default();
            refuse(&[(name, !value.is_null() && value != Value::Bool(false))])?;
        }
        let fields: Fields = serde_json::from_value(Value::Object(object))
            .map_err(|error| ApiError::bad_request(format!("request: {error}")))?;
        let (prompts, is_batch) = match (fields.text, fields.input_ids) {
            (Some(OneOrMany::One(text)), None) => (vec![Prompt::Text(text)], false),
            (Some(OneOrMany::Many(texts)), None) => (texts.into_iter().map(Prompt::Text).collect(), true),
            (None, Some(OneOrManyIds::Many(lists))) if !lists.is_empty() => {
                (lists.into_iter().map(Prompt::Ids).collect(), true)
            }
            (None, Some(OneOrManyIds::One(ids))) => (vec![Prompt::Ids(ids)], false),
            (None, Some(OneOrManyIds::Many(_))) => (vec![Prompt::Ids(Vec::new())], false),
            _ => return Err(ApiError::bad_request("expected exactly one of text and input_ids")),
        };
        let num = prompts.len();
        if num == 0 {
            return Err(ApiError::field("text", "text: expected at least one prompt"));
        }
        let rid = fields.rid.unwrap_or_else(|| OneOrMany::One(format!("{:016x}", any_number())));
        let (mut wanted, mut asked) = (Vec::new(), Vec::new());
        for (index, prompt) in prompts.into_iter().enumerate() {
            let rid = match &rid {
                OneOrMany::One(rid) if is_batch => format!("{rid}_{index}"),
                rid => rid.of("rid", index, num)?,
            };
            let params =
                fields.sampling_params.as_ref().map(|params| params.of("sampling_params", index, num));
            let sampling =
                SamplingFields::parse(params.transpose()?.unwrap_or_default())?.resolve(app).await?;
            let has_log_probs = of(fields.return_logprob.as_ref(), "return_logprob", index, num)?;
            let start = fields.logprob_start_len.as_ref().unwrap_or(&OneOrMany::One(-1));
            let start = start.of("logprob_start_len", index, num)?;
            let num_top: u32 = of(fields.top_logprobs_num.as_ref(), "top_logprobs_num", index, num)?;
            let num_top = if has_log_probs { num_top as usize } else { 0 };
            let vocab_size = app.handle.status.limits.vocab_size;
            if num_top > vocab_size {
                let message = format!(
                    "top_logprobs_num: expected at most the vocabulary of {vocab_size}, got {num_top}"
                );
                return Err(ApiError::field("top_logprobs_num", message));
            }
            let tokens = match prompt {
                Prompt::Text(text) => app.encode(text, true).await?,
                Prompt::Ids(ids) => ids,
            };
            let log_prob_start = start_of(start, tokens.len())?.filter(|_| has_log_probs);
            let mut params = sampling.params;
            params.top_log_probs = num_top;
            params.priority = fields.priority.unwrap_or(0);
            asked.push(Asked {
                rules: sampling.rules,
                prompt: tokens.clone(),
                num_samples: params.n as usize,
                has_log_probs,
                log_prob_start,
                num_top,
                has_kept_ids: params.keeps_ids,
                has_text_of_tokens: fields.return_text_in_logprobs,
            });
            let prompt_log_probs = log_prob_start.map(|_| num_top);
            let wants_tokens = fields.stream || num_top > 0;
            wanted.push(Wanted { rid, tokens, params, prompt_log_probs, wants_tokens });
        }
        let is_list = is_batch || asked.iter().any(|asked| asked.num_samples > 1);
        Ok(Self { wanted, asked, is_stream: fields.stream, is_list })
    }
}

fn of<T: Clone + Default>(
    values: Option<&OneOrMany<T>>,
    name: &str,
    index: usize,
    num: usize,
) -> ApiResult<T> {
    values.map_or_else(|| Ok(T::default()), |values| values.of(name, index, num))
}

/// -1 is: of the response alone.
fn start_of(start: i64, prompt_len: usize) -> ApiResult<Option<usize>> {
    match usize::try_from(start) {
        Ok(start) if start < prompt_len => Ok(Some(start)),
        Ok(start) if start == prompt_len => Ok(None),
        Err(_) if start == -1 => Ok(None),
        _ => {
            let message = format!("logprob_start_len: expected -1 to {prompt_len}, got {start}");
            Err(ApiError::field("logprob_start_len", message))
        }
    }
}
