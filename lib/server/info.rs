//! Routes that tell: health, load, what is served, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use slime_engine::SamplingParams;

use crate::app::{App, now_s};
use crate::gather::Gathering;
use crate::job::Command;
use crate::text::TextRules;
use crate::{ApiError, ApiResult, Wanted};

/// Time in which the engine has to show that it computes.
const ALIVE: Duration = Duration::from_secs(20);
/// Time between two looks at what it has computed.
const LOOK: Duration = Duration::from_millis(20);

/// `GET /health`: the engine's thread lives and the server takes requests.
pub async fn health(State(app): State<Arc<App>>) -> ApiResult<StatusCode> {
    let status = &app.handle.status;
    if status.is_dead.load(Ordering::Acquire) {
        return Err(ApiError::unavailable("the engine has ended"));
    }
    if status.is_draining.load(Ordering::Relaxed) {
        return Err(ApiError::unavailable("the server is about to end"));
    }
    Ok(StatusCode::OK)
}

/// `GET /health_generate`: the engine computes: a token of its own, or others' while it is busy. Paused, it answers.
pub async fn health_generate(State(app): State<Arc<App>>) -> ApiResult<StatusCode> {
    health(State(app.clone())).await?;
    let silent = |_| ApiError::unavailable(format!("the engine computed nothing for {} s", ALIVE.as_secs()));
    tokio::time::timeout(ALIVE, shows_life(&app)).await.map_err(silent)??;
    Ok(StatusCode::OK)
}

async fn shows_life(app: &App) -> ApiResult<()> {
    let status = &app.handle.status;
    if status.is_paused.load(Ordering::Relaxed) {
        return app.handle.ask(Command::Ping).await;
    }
    if status.num_unfinished.load(Ordering::Relaxed) > 0 {
        let before = status.num_steps.load(Ordering::Relaxed);
        while status.num_steps.load(Ordering::Relaxed) == before
            && status.num_unfinished.load(Ordering::Relaxed) > 0
            && !status.is_paused.load(Ordering::Relaxed)
        {
            tokio::time::sleep(LOOK).await;
        }
        return Ok(());
    }
    let params = SamplingParams { max_new_tokens: 1, ..SamplingParams::default() };
    let rid = "HEALTH_CHECK".to_owned();
    let wanted = Wanted { rid, tokens: vec![0], params, prompt_log_probs: None, wants_tokens: false };
    let rules = TextRules::default();
    for mut run in app.handle.submit(vec![wanted])? {
        Gathering::new(&app.tokenizer, &rules, 1).wait(&mut run, status).await?;
    }
    Ok(())
}

/// `GET /v1/loads`: what runs and waits, as `SGLang` tells it.
pub async fn loads(State(app): State<Arc<App>>) -> Json<Value> {
    let status = &app.handle.status;
    let (load, usage) = status.load();
    let num_used = (load.kv_used * status.limits.num_slots as f64).round() as u64;
    let num_total = load.num_running + load.num_waiting;
    Json(json!({
        "timestamp": now_s(),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [{
            "dp_rank": 0,
            "num_running_reqs": load.num_running,
            "num_waiting_reqs": load.num_waiting,
            "num_total_reqs": num_total,
            "num_reqs": num_total,
            "num_used_tokens": num_used,
            "num_tokens": num_used,
            "max_total_num_tokens": status.limits.num_slots,
            "max_running_requests": status.limits.max_num_seqs,
            "token_usage": load.kv_used,
            "num_preemptions": usage.num_preemptions,
        }],
        "aggregate": {
            "total_running_reqs": load.num_running,
            "total_waiting_reqs": load.num_waiting,
            "total_reqs": num_total,
            "avg_token_usage": load.kv_used,
        },
    }))
}

/// `GET /server_info` (and `/get_server_info`).
pub async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let status = &app.handle.status;
    let (load, usage) = status.load();
    let path = app.config.model_path.display().to_string();
    Json(json!({
        "server": "slime-rollout",
        "version": env!("CARGO_PKG_VERSION"),
        "model_path": path,
        "tokenizer_path": path,
        "served_model_name": app.config.model_name,
        "weight_version": status.weight_version(),
        "context_length": status.limits.context_len,
        "vocab_size": status.limits.vocab_size,
        "max_total_num_tokens": status.limits.num_slots,
        "max_running_requests": status.limits.max_num_seqs,
        "max_queued_requests": app.config.max_queued,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "num_gpus": 1,
        "disaggregation_mode": "null",
        "tool_call_parser": app.tool_calls.name(),
        "is_paused": status.is_paused.load(Ordering::Relaxed),
        "uptime_s": app.started.elapsed().as_secs_f64(),
        "internal_states": [{
            "num_running_reqs": load.num_running,
            "num_waiting_reqs": load.num_waiting,
            "num_generated_tokens": usage.num_sampled_tokens,
        }],
    }))
}

/// `GET /get_model_info` (and `/model_info`).
pub async fn model_info(State(app): State<Arc<App>>) -> Json<Value> {
    let path = app.config.model_path.display().to_string();
    Json(json!({
        "model_path": path,
        "tokenizer_path": path,
        "is_generation": true,
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "weight_version": app.handle.status.weight_version(),
    }))
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [{
        "id": app.config.model_name,
        "object": "model",
        "created": app.started_s,
        "owned_by": "slime",
        "root": app.config.model_path.display().to_string(),
        "max_model_len": app.handle.status.limits.context_len,
    }] }))
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, app.handle.status.prometheus()).into_response()
}
