//! How the kinds of servers are asked for samples and how their answers read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use slime_engine::{Decode, Drafting, FinishReason, KeptIds, Request, SampleSeed};
use slime_record::VersionRun;

use super::http::{CallError, Client};

/// What a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `slime-rollout serve`.
    Slime,
    /// `SGLang`.
    Sglang,
    /// `vLLM`.
    Vllm,
}

/// A server as it tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// What it is.
    pub kind: Kind,
    /// What it calls its model.
    pub model: String,
    /// Tokens of a prompt and its response, where it says.
    pub context_len: Option<usize>,
    /// What its weights are called.
    pub weight_version: String,
}

/// A sample as a server gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Response tokens.
    pub tokens: Vec<u32>,
    /// One per response token.
    pub log_probs: Vec<f32>,
    /// The tokens that truncation left to each choice, where the server tells them.
    pub kept: KeptIds,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Which weights sampled which tokens.
    pub weight_versions: Vec<VersionRun>,
}

/// Asks a server what it is.
///
/// # Errors
/// It does not answer, or is none of the known kinds.
pub fn introduce(client: &Client) -> Result<About, CallError> {
    let asked = client.get("/server_info");
    let asked = match asked {
        Err(CallError::Refused { status: 404, .. }) => client.get("/get_server_info"),
        other => other,
    };
    match asked {
        Ok(info) if info["model_path"].is_string() => {
            let text = |name: &str| info[name].as_str().map(str::to_owned);
            let is_ours = info["server"] == "slime-rollout";
            let version = client.get("/get_model_info").unwrap_or_default();
            Ok(About {
                kind: if is_ours { Kind::Slime } else { Kind::Sglang },
                model: text("served_model_name").or_else(|| text("model_path")).unwrap_or_default(),
                context_len: info["context_length"].as_u64().map(|len| len as usize),
                weight_version: version["weight_version"].as_str().unwrap_or_default().to_owned(),
            })
        }
        Ok(_) | Err(CallError::Refused { status: 404 | 405, .. }) => {
            let models = client.get("/v1/models")?;
            let model = &models["data"][0];
            let Some(name) = model["id"].as_str() else {
                return Err(CallError::Failed("it is no server of slime, SGLang or vLLM".to_owned()));
            };
            Ok(About {
                kind: Kind::Vllm,
                model: name.to_owned(),
                context_len: model["max_model_len"].as_u64().map(|len| len as usize),
                weight_version: String::new(),
            })
        }
        Err(error) => Err(error),
    }
}

/// Where a request goes and what it says.
pub fn call(about: &About, rid: &str, request: &Request) -> (&'static str, Value) {
    let params = &request.params;
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    set("temperature", params.temperature.into());
    set("top_p", params.top_p.into());
    set("min_p", params.min_p.into());
    set("top_k", if params.top_k == 0 { (-1).into() } else { params.top_k.into() });
    set("n", params.n.into());
    set("stop_token_ids", json!(params.stop_token_ids));
    if !params.penalties.is_none() {
        set("repetition_penalty", params.penalties.repetition.into());
        set("frequency_penalty", params.penalties.frequency.into());
        set("presence_penalty", params.penalties.presence.into());
    }
    if !params.stop.is_empty() {
        set("stop", json!(params.stop));
    }
    if about.kind == Kind::Vllm {
        set("model", about.model.clone().into());
        set("prompt", json!(request.tokens));
        set("max_tokens", params.max_new_tokens.into());
        set("logprobs", 0.into());
        set("return_token_ids", true.into());
        set("skip_special_tokens", false.into());
        set("include_stop_str_in_output", true.into());
        set("seed", small_seed(&params.seed).into());
        return ("/v1/completions", Value::Object(fields));
    }
    set("max_new_tokens", params.max_new_tokens.into());
    set("skip_special_tokens", false.into());
    set("no_stop_trim", true.into());
    if params.keeps_ids {
        set("custom_params", json!({ "return_top_p_token_ids": true }));
    }
    if about.kind == Kind::Slime {
        let SampleSeed { seed, step, group, index } = params.seed;
        let first_token = params.first_token;
        let seed =
            json!({ "seed": seed, "step": step, "group": group, "index": index, "first_token": first_token });
        set("sample_seed", seed);
    }
    let body = json!({
        "rid": rid, "input_ids": request.tokens, "sampling_params": fields, "return_logprob": true,
    });
    ("/generate", body)
}

/// One number of the four, for servers whose seed is one of 31 bits.
fn small_seed(seed: &SampleSeed) -> u64 {
    let parts = [seed.seed, seed.step, u64::from(seed.group), u64::from(seed.index)];
    let mix = |hash: u64, part: &u64| (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    parts.iter().fold(0x51_7C_C1_B7, mix) >> 33
}

/// The samples of an answer, in their order.
///
/// # Errors
/// Something is missing, or somebody aborted a sample: another try may bring it.
pub fn read(about: &About, answer: &Value, request: &Request, version: u64) -> Result<Vec<Drawn>, CallError> {
    let num = request.params.n as usize;
    let wrong = |what: &str| CallError::Failed(format!("expected {what} in the answer"));
    let samples: Vec<Drawn> = match (about.kind, answer) {
        (Kind::Vllm, answer) => {
            let choices = answer["choices"].as_array().ok_or_else(|| wrong("choices"))?;
            let mut indexed: Vec<(u64, Drawn)> = choices
                .iter()
                .map(|choice| Some((choice["index"].as_u64()?, of_vllm(choice, version)?)))
                .collect::<Option<_>>()
                .ok_or_else(|| wrong("token_ids with logprobs (of vLLM 0.10.2 or newer)"))?;
            indexed.sort_by_key(|(index, _)| *index);
            indexed.into_iter().map(|(_, drawn)| drawn).collect()
        }
        (_, Value::Array(answers)) => {
            answers.iter().map(|answer| of_sglang(answer, version)).collect::<Option<_>>().ok_or_else(
                || wrong("meta_info with output_token_logprobs and finish_reason for each sample"),
            )?
        }
        (_, answer) => {
            vec![of_sglang(answer, version).ok_or_else(|| wrong("meta_info with output_token_logprobs"))?]
        }
    };
    if samples.len() != num {
        return Err(CallError::Failed(format!("expected {num} samples, got {}", samples.len())));
    }
    if samples.iter().any(|drawn| drawn.finish_reason == FinishReason::Abort) {
        return Err(CallError::Failed("the server aborted a sample".to_owned()));
    }
    Ok(samples)
}

fn of_sglang(answer: &Value, version: u64) -> Option<Drawn> {
    let meta = &answer["meta_info"];
    let finish_reason = reason(meta["finish_reason"]["type"].as_str()?)?;
    let pairs = meta["output_token_logprobs"].as_array()?;
    let mut tokens = Vec::with_capacity(pairs.len());
    let mut log_probs = Vec::with_capacity(pairs.len());
    for pair in pairs {
        log_probs.push(pair[0].as_f64()? as f32);
        tokens.push(u32::try_from(pair[1].as_u64()?).ok()?);
    }
    let told: Option<Vec<VersionRun>> = serde_json::from_value(meta["weight_versions"].clone()).ok();
    let named = meta["weight_version"].as_str().and_then(|name| name.parse().ok()).unwrap_or(version);
    let weight_versions = told.unwrap_or_else(|| runs(named, tokens.len()));
    let kept = kept(meta, tokens.len())?;
    Some(Drawn { tokens, log_probs, kept, finish_reason, weight_versions })
}

/// The lists of kept ids and where each ends; none at all is none, broken ones are an error.
fn kept(meta: &Value, num_tokens: usize) -> Option<KeptIds> {
    let (Some(ids), Some(offsets)) =
        (meta["top_p_token_ids"].as_str(), meta["top_p_token_ids_offsets"].as_str())
    else {
        return Some(KeptIds::default());
    };
    let (ids, offsets) = (int32(ids)?, int32(offsets)?);
    let lens: Option<Vec<u32>> =
        offsets.windows(2).map(|ends| ends.get(1)?.checked_sub(*ends.first()?)).collect();
    let is_whole = offsets.first() == Some(&0) && offsets.last().copied() == Some(ids.len() as u32);
    lens.filter(|lens| is_whole && lens.len() == num_tokens).map(|lens| KeptIds { lens, ids })
}

/// Numbers from the base64 text of little-endian int32.
fn int32(text: &str) -> Option<Vec<u32>> {
    let bytes = STANDARD.decode(text).ok()?;
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

fn of_vllm(choice: &Value, version: u64) -> Option<Drawn> {
    let finish_reason = reason(choice["finish_reason"].as_str()?)?;
    let tokens: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).ok()?;
    let log_probs: Vec<f32> = serde_json::from_value(choice["logprobs"]["token_logprobs"].clone()).ok()?;
    if tokens.len() != log_probs.len() {
        return None;
    }
    let (weight_versions, kept) = (runs(version, tokens.len()), KeptIds::default());
    Some(Drawn { tokens, log_probs, kept, finish_reason, weight_versions })
}

fn runs(version: u64, len: usize) -> Vec<VersionRun> {
    if len == 0 { Vec::new() } else { vec![VersionRun { version, len: len as u32 }] }
}

fn reason(name: &str) -> Option<FinishReason> {
    [FinishReason::Stop, FinishReason::Length, FinishReason::Abort].into_iter().find(|r| r.as_str() == name)
}

/// The completions of samples, as an engine of this process would give them.
pub fn completions(id: u64, drawn: Vec<Drawn>, decode: &Decode) -> Vec<slime_engine::Completion> {
    let one = |(index, drawn): (u32, Drawn)| slime_engine::Completion {
        id,
        index,
        text: decode(&drawn.tokens),
        tokens: drawn.tokens,
        log_probs: drawn.log_probs,
        kept: drawn.kept,
        routed_experts: Vec::new(),
        finish_reason: drawn.finish_reason,
        weight_versions: drawn.weight_versions,
        num_cached: 0,
        drafting: Drafting::default(),
    };
    (0..).zip(drawn).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(kind: Kind) -> About {
        About { kind, model: "m".to_owned(), context_len: None, weight_version: String::new() }
    }

    fn request(n: u32) -> Request {
        let mut request = Request { id: 1, tokens: vec![5, 6], ..Request::default() };
        request.params.n = n;
        request
    }

    #[test]
    fn every_kind_is_asked_for_tokens_and_log_probs() {
        let (path, body) = call(&about(Kind::Slime), "r", &request(2));
        assert_eq!(
            (path, &body["input_ids"], &body["return_logprob"]),
            ("/generate", &json!([5, 6]), &json!(true))
        );
        assert!(body["sampling_params"]["sample_seed"].is_object() && body["sampling_params"]["top_k"] == -1);
        let (_, body) = call(&about(Kind::Sglang), "r", &request(2));
        assert!(body["sampling_params"].get("sample_seed").is_none(), "SGLang refuses what it does not know");
        let (path, body) = call(&about(Kind::Vllm), "r", &request(2));
        assert_eq!((path, &body["prompt"], &body["n"]), ("/v1/completions", &json!([5, 6]), &json!(2)));
        assert_eq!((&body["return_token_ids"], &body["logprobs"]), (&json!(true), &json!(0)));
    }

    #[test]
    fn answers_of_every_kind_are_read() {
        let sglang = json!({"text": "x", "meta_info": {"finish_reason": {"type": "stop", "matched": 2},
            "output_token_logprobs": [[-0.5, 7, null], [-1.0, 2, null]], "weight_version": "3"}});
        let drawn = read(&about(Kind::Sglang), &sglang, &request(1), 0).unwrap();
        assert_eq!(
            (drawn[0].tokens.as_slice(), drawn[0].log_probs.as_slice()),
            (&[7, 2][..], &[-0.5, -1.0][..])
        );
        assert_eq!(drawn[0].weight_versions, [VersionRun { version: 3, len: 2 }]);
        let choice = |index: u32, token: u32| {
            json!({"index": index, "text": "", "finish_reason": "length",
            "token_ids": [token], "logprobs": {"token_logprobs": [-0.25]}})
        };
        let vllm = json!({"choices": [choice(1, 9), choice(0, 8)]});
        let drawn = read(&about(Kind::Vllm), &vllm, &request(2), 4).unwrap();
        assert_eq!((drawn[0].tokens[0], drawn[1].tokens[0]), (8, 9), "in the order of their indices");
        assert_eq!(drawn[0].weight_versions, [VersionRun { version: 4, len: 1 }]);
    }

    #[test]
    fn kept_ids_are_read_back_and_broken_lists_are_another_try() {
        let encode = |values: &[u32]| {
            STANDARD.encode(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        };
        let answer = |offsets: &[u32]| {
            json!({"meta_info": {"finish_reason": {"type": "stop"}, "top_p_token_ids": encode(&[4, 5, 6]),
                "output_token_logprobs": [[-0.5, 4, null], [-0.5, 6, null]],
                "top_p_token_ids_offsets": encode(offsets)}})
        };
        let drawn = read(&about(Kind::Slime), &answer(&[0, 2, 3]), &request(1), 0).unwrap();
        assert_eq!(drawn[0].kept, KeptIds { lens: vec![2, 1], ids: vec![4, 5, 6] });
        for offsets in [&[0, 2][..], &[0, 4, 3], &[1, 2, 3], &[0, 1, 2, 3], &[]] {
            assert!(read(&about(Kind::Slime), &answer(offsets), &request(1), 0).is_err(), "{offsets:?}");
        }
    }

    #[test]
    fn incomplete_and_aborted_answers_are_another_try() {
        for answer in [
            json!({}),
            json!({"meta_info": {"finish_reason": {"type": "abort"}, "output_token_logprobs": []}}),
            json!({"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[null, 3, null]]}}),
            json!([{"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": []}}, {}]),
        ] {
            let error = read(&about(Kind::Slime), &answer, &request(1), 0).unwrap_err();
            assert!(matches!(error, CallError::Failed(_)), "{answer}: {error:?}");
        }
        assert!(read(&about(Kind::Vllm), &json!({"choices": [{"index": 0}]}), &request(1), 0).is_err());
    }
}
