//! Fields that chats and completions have in common.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{App, any_number};
use crate::sampling::{OneOrMany, Sampling, SamplingFields, SeedFields, refuse};
use crate::{ApiError, ApiResult};

/// Fields that say who asks or how it is billed, logged or routed, not what is computed.
const WITHOUT_EFFECT: [&str; 11] = [
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning_effort",
    "safety_identifier",
    "separate_reasoning",
    "service_tier",
    "store",
    "stream_reasoning",
    "user",
    "verbosity",
];

/// What both routes take.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// What the model is called.
    pub model: Option<String>,
    /// Answers come as events.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Of them.
    pub stream_options: Option<StreamOptions>,
    /// Samples of each prompt.
    pub n: Option<u32>,
    /// The client's name of the request.
    pub rid: Option<String>,
    /// Token ids are told (as vLLM does).
    #[serde(default)]
    pub return_token_ids: bool,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    sample_seed: Option<SeedFields>,
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    ignore_eos: bool,
    skip_special_tokens: Option<bool>,
    #[serde(default)]
    no_stop_trim: bool,
    regex: Option<String>,
    ebnf: Option<String>,
    response_format: Option<ResponseFormat>,
    min_tokens: Option<u64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    logit_bias: Option<BTreeMap<String, f32>>,
    priority: Option<i64>,
}

/// `stream_options`.
#[derive(Debug, Default, Deserialize)]
pub struct StreamOptions {
    /// The last event holds the count of tokens.
    #[serde(default)]
    pub include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

#[derive(Debug, Deserialize)]
struct NamedSchema {
    schema: Option<Value>,
}

impl Fields {
    /// The fields in this object.
    ///
    /// # Errors
    /// An unknown or ill-typed field, by name; a model that is not served here.
    pub fn parse(app: &App, mut object: Map<String, Value>) -> ApiResult<Self> {
        for name in WITHOUT_EFFECT {
            object.remove(name);
        }
        let fields: Self = serde_json::from_value(Value::Object(object))
            .map_err(|error| ApiError::bad_request(format!("request: {error}")))?;
        let path = app.config.model_path.display().to_string();
        match &fields.model {
            Some(model) if *model != app.config.model_name && *model != path && model != "default" => {
                let message =
                    format!("the model {model:?} is not served here, {:?} is", app.config.model_name);
                let not_found = ApiError::new(axum::http::StatusCode::NOT_FOUND, message);
                Err(ApiError { param: Some("model".to_owned()), ..not_found })
            }
            _ => Ok(fields),
        }
    }

    /// The name of the request.
    pub fn id(&self, kind: &str) -> String {
        self.rid.clone().unwrap_or_else(|| format!("{kind}-{:016x}{:016x}", any_number(), any_number()))
    }

    /// How to sample; `max_tokens` where the request does not say, none is what fits.
    ///
    /// # Errors
    /// A value out of range, or one the engine does not compute.
    pub async fn sampling(&self, app: &App, max_tokens: Option<usize>) -> ApiResult<Sampling> {
        refuse(&[("min_tokens", self.min_tokens.is_some_and(|least| least > 0))])?;
        let json_schema = match &self.response_format {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject) => Some(json!({"type": "object"}).to_string()),
            Some(ResponseFormat::JsonSchema { json_schema: NamedSchema { schema } }) => {
                let missing =
                    || ApiError::field("response_format", "response_format.json_schema: expected schema");
                Some(schema.as_ref().ok_or_else(missing)?.to_string())
            }
        };
        let fields = SamplingFields {
            max_new_tokens: self.max_tokens().or(max_tokens).or(Some(fitting(app))),
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            n: self.n,
            ignore_eos: self.ignore_eos,
            skip_special_tokens: self.skip_special_tokens,
            no_stop_trim: self.no_stop_trim,
            json_schema,
            regex: self.regex.clone(),
            ebnf: self.ebnf.clone(),
            sampling_seed: self.seed.map(|seed| seed as u64),
            sample_seed: self.sample_seed,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            logit_bias: self.logit_bias.clone(),
            ..SamplingFields::default()
        };
        let mut sampling = fields.resolve(app).await?;
        sampling.params.priority = self.priority.unwrap_or(0);
        Ok(sampling)
    }

    /// What the request itself says of the length.
    fn max_tokens(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// The response may be as long as fits behind the prompt, where the request does not say how long.
    pub fn fit(&self, app: &App, sampling: &mut Sampling, prompt_len: usize) {
        if self.max_tokens().is_none() {
            let left = fitting(app).saturating_sub(prompt_len).max(1);
            sampling.params.max_new_tokens = sampling.params.max_new_tokens.min(left);
        }
    }

    /// Whether the request itself keeps responses to a language.
    pub fn has_language(&self) -> bool {
        let is_format = !matches!(self.response_format, None | Some(ResponseFormat::Text));
        is_format || self.regex.is_some() || self.ebnf.is_some()
    }

    /// Whether the last event holds the count of tokens.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage)
    }
}

/// Tokens that context and cache hold.
fn fitting(app: &App) -> usize {
    let limits = &app.handle.status.limits;
    limits.context_len.min(limits.num_slots)
}

/// Takes a field of one route out of the object.
///
/// # Errors
/// It has another type.
pub fn take<T: serde::de::DeserializeOwned>(
    object: &mut Map<String, Value>,
    name: &str,
) -> ApiResult<Option<T>> {
    let value = object.remove(name).filter(|value| !value.is_null());
    let parsed = value.map(serde_json::from_value).transpose();
    parsed.map_err(|error| ApiError::field(name, format!("{name}: {error}")))
}
