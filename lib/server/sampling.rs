//! `sampling_params` of `/generate`, under `SGLang`'s names.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use slime_engine::{Penalties, SampleSeed, SamplingParams};

use crate::app::{App, any_number};
use crate::text::TextRules;
use crate::{ApiError, ApiResult, Language};

/// Response tokens where nothing is said, as in `SGLang`.
const MAX_NEW_TOKENS: usize = 128;

/// One value, or one for each prompt of a batch.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected one value or a list of them")]
pub enum OneOrMany<T> {
    /// For all.
    One(T),
    /// For each.
    Many(Vec<T>),
}

impl<T: Clone> OneOrMany<T> {
    /// The value of prompt `index` of `num`.
    ///
    /// # Errors
    /// A list of another length.
    pub fn of(&self, name: &str, index: usize, num: usize) -> ApiResult<T> {
        match self {
            Self::One(value) => Ok(value.clone()),
            Self::Many(values) if values.len() == num => values
                .get(index)
                .cloned()
                .ok_or_else(|| ApiError::field(name, format!("{name}: nothing for prompt {index}"))),
            Self::Many(values) => Err(ApiError::field(
                name,
                format!("{name}: expected one value or one for each of {num} prompts, got {}", values.len()),
            )),
        }
    }

    /// All values.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

/// The seed of a sample, as `slime-rollout` derives random numbers from it; an addition to `SGLang`'s fields.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeedFields {
    /// `run.seed`.
    pub seed: u64,
    /// The step.
    pub step: u64,
    /// The group.
    pub group: u32,
    /// The first sample's index in it.
    pub index: u32,
    /// Response tokens the prompt already ends with.
    pub first_token: u64,
}

/// What the framework slime asks of its engines beside them.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CustomFields {
    /// The answer tells which tokens truncation left to each choice.
    pub return_top_p_token_ids: bool,
}

/// `SGLang`'s sampling parameters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "expected an object of sampling parameters")]
pub struct SamplingFields {
    pub(crate) max_new_tokens: Option<usize>,
    pub(crate) stop: Option<OneOrMany<String>>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) n: Option<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special_tokens: Option<bool>,
    pub(crate) spaces_between_special_tokens: Option<bool>,
    pub(crate) no_stop_trim: bool,
    pub(crate) json_schema: Option<String>,
    pub(crate) regex: Option<String>,
    pub(crate) ebnf: Option<String>,
    pub(crate) sampling_seed: Option<u64>,
    pub(crate) sample_seed: Option<SeedFields>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    pub(crate) custom_params: Option<CustomFields>,
    // Those that are only taken at the value that changes nothing.
    pub(crate) min_new_tokens: Option<u64>,
    pub(crate) structural_tag: Option<Value>,
    pub(crate) stop_regex: Option<Value>,
    pub(crate) stream_interval: Option<Value>,
}

/// How to sample, as the engine and the text of a response need it.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// For the engine.
    pub params: SamplingParams,
    /// For the text.
    pub rules: TextRules,
}

impl SamplingFields {
    /// The sampling parameters in this object.
    ///
    /// # Errors
    /// An unknown or ill-typed field, by name.
    pub fn parse(fields: Map<String, Value>) -> ApiResult<Self> {
        serde_json::from_value(Value::Object(fields))
            .map_err(|error| ApiError::field("sampling_params", format!("sampling_params: {error}")))
    }

    /// For the engine and the text.
    ///
    /// # Errors
    /// A value out of range, one the engine does not compute, a language that is none.
    pub async fn resolve(self, app: &App) -> ApiResult<Sampling> {
        self.refuse_uncomputed()?;
        let mut stop_token_ids = if self.ignore_eos { Vec::new() } else { app.stop_token_ids.clone() };
        stop_token_ids.extend(self.stop_token_ids.iter().flatten());
        let stop: Vec<String> = self.stop.clone().map(OneOrMany::into_vec).unwrap_or_default();
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::field("stop", "stop: expected strings with at least one letter"));
        }
        let top_k = match self.top_k.unwrap_or(-1) {
            -1 => 0,
            top_k if top_k >= 1 => top_k as usize,
            top_k => {
                return Err(ApiError::field(
                    "top_k",
                    format!("top_k: expected -1 (all) or at least 1, got {top_k}"),
                ));
            }
        };
        let fields = self.sample_seed.unwrap_or_else(|| SeedFields {
            seed: self.sampling_seed.unwrap_or_else(any_number),
            ..SeedFields::default()
        });
        let SeedFields { seed, step, group, index, first_token } = fields;
        let constraint = match self.language()? {
            Some(language) => Some(app.constraint(language).await?),
            None => None,
        };
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_k,
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            penalties: Penalties {
                repetition: self.repetition_penalty.unwrap_or(1.0),
                frequency: self.frequency_penalty.unwrap_or(0.0),
                presence: self.presence_penalty.unwrap_or(0.0),
            },
            logit_bias: self.logit_bias()?,
            keeps_ids: self.custom_params.is_some_and(|custom| custom.return_top_p_token_ids),
            max_new_tokens: self.max_new_tokens.unwrap_or(MAX_NEW_TOKENS),
            stop: stop.clone(),
            stop_token_ids: stop_token_ids.clone(),
            seed: SampleSeed { seed, step, group, index },
            first_token,
            n: self.n.unwrap_or(1),
            constraint,
            ..SamplingParams::default()
        };
        check(&params)?;
        let skip_special_tokens = self.skip_special_tokens.unwrap_or(true);
        let rules = TextRules { skip_special_tokens, keep_stop: self.no_stop_trim, stop, stop_token_ids };
        Ok(Sampling { params, rules })
    }

    /// Token ids are names in JSON.
    fn logit_bias(&self) -> ApiResult<Vec<(u32, f32)>> {
        let one = |(token, bias): (&String, &f32)| {
            let message = || format!("logit_bias: expected token ids, got {token:?}");
            let token = token.parse().map_err(|_| ApiError::field("logit_bias", message()))?;
            Ok((token, *bias))
        };
        self.logit_bias.iter().flatten().map(one).collect()
    }

    fn language(&self) -> ApiResult<Option<Language>> {
        let mut languages = Vec::new();
        if let Some(text) = &self.json_schema {
            let schema = serde_json::from_str(text)
                .map_err(|error| ApiError::field("json_schema", format!("json_schema: not JSON: {error}")))?;
            languages.push(Language::JsonSchema(schema));
        }
        languages.extend(self.regex.clone().map(Language::Regex));
        languages.extend(self.ebnf.clone().map(Language::Lark));
        match languages.len() {
            0 | 1 => Ok(languages.pop()),
            _ => Err(ApiError::bad_request("expected at most one of json_schema, regex and ebnf")),
        }
    }

    fn refuse_uncomputed(&self) -> ApiResult<()> {
        let is_empty = |value: &Value| {
            value.is_null()
                || value.as_object().is_some_and(Map::is_empty)
                || value.as_array().is_some_and(Vec::is_empty)
        };
        let set = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_empty(value));
        let refused = [
            ("min_new_tokens", self.min_new_tokens.is_some_and(|least| least > 0)),
            ("structural_tag", set(&self.structural_tag)),
            ("stop_regex", set(&self.stop_regex)),
            ("stream_interval", set(&self.stream_interval)),
            ("spaces_between_special_tokens", self.spaces_between_special_tokens == Some(false)),
        ];
        refuse(&refused)
    }
}

/// An error for the first of the named fields that is set to something this engine does not compute.
///
/// # Errors
/// One of them is.
pub fn refuse(fields: &[(&str, bool)]) -> ApiResult<()> {
    match fields.iter().find(|(_, is_set)| *is_set) {
        Some((name, _)) => Err(ApiError::field(
            name,
            format!("{name} is not supported here: leave it out or at its default"),
        )),
        None => Ok(()),
    }
}

/// The ranges of the engine; `max_new_tokens` 0 only looks at the prompt.
///
/// # Errors
/// A value out of range, by name.
pub fn check(params: &SamplingParams) -> ApiResult<()> {
    let least_one = SamplingParams { max_new_tokens: params.max_new_tokens.max(1), ..params.clone() };
    least_one.check().map_err(|error| match error {
        slime_engine::Error::Parameter { key, .. } => ApiError::field(key, error.to_string()),
        error => ApiError::bad_request(error.to_string()),
    })
}
