//! Routes that steer the engine: aborting, pausing, flushing, other weights.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::app::App;
use crate::job::{Command, PauseMode, Update, Which};
use crate::sampling::refuse;
use crate::{ApiError, ApiResult, body};

async fn fields<T: DeserializeOwned>(app: &App, request: Request) -> ApiResult<T> {
    let object = body::object(app, request).await?;
    serde_json::from_value(Value::Object(object))
        .map_err(|error| ApiError::bad_request(format!("request: {error}")))
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct AbortFields {
    rid: String,
    abort_all: bool,
    abort_message: Option<String>,
}

/// `POST /abort_request`: jobs end where they are, and their clients get what there is.
pub async fn abort_request(State(app): State<Arc<App>>, request: Request) -> ApiResult<StatusCode> {
    let AbortFields { rid, abort_all, abort_message } = fields(&app, request).await?;
    if let Some(message) = abort_message {
        tracing::info!("abort of {rid:?}: {message}");
    }
    let which = match (abort_all, rid.is_empty()) {
        (true, _) => Which::All,
        (false, false) => Which::Rid(rid),
        (false, true) => return Err(ApiError::field("rid", "expected rid, or abort_all = true")),
    };
    app.handle.order(Command::Abort(which))?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseFields {
    #[serde(default = "abort")]
    mode: PauseMode,
}

fn abort() -> PauseMode {
    PauseMode::Abort
}

/// `POST /pause_generation`: answered when no step is computed any more.
pub async fn pause_generation(State(app): State<Arc<App>>, request: Request) -> ApiResult<Json<Value>> {
    let PauseFields { mode } = fields(&app, request).await?;
    app.handle.ask(|answer| Command::Pause(mode, answer)).await?;
    Ok(Json(json!({ "message": "Generation paused successfully.", "status": "ok" })))
}

/// `POST /continue_generation`.
pub async fn continue_generation(State(app): State<Arc<App>>) -> ApiResult<Json<Value>> {
    app.handle.ask(Command::Continue).await?;
    Ok(Json(json!({ "message": "Generation continued successfully.", "status": "ok" })))
}

/// `GET` or `POST /flush_cache`: 400 while requests run or wait, as in `SGLang`.
pub async fn flush_cache(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let text = match app.handle.ask(Command::Flush).await? {
        0 => "Cache flushed.\n".to_owned(),
        num => {
            let text = format!("The cache is not flushed: {num} requests run or wait.\n");
            return Ok((StatusCode::BAD_REQUEST, text).into_response());
        }
    };
    Ok(text.into_response())
}

/// What `SGLang` lets clients say of graphs, pauses and other caches: a swap recaptures, ends and frees nothing here.
const WITHOUT_EFFECT: [&str; 4] = ["torch_empty_cache", "keep_pause", "recapture_cuda_graph", "token_step"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateFields {
    model_path: String,
    weight_version: Option<String>,
    #[serde(default)]
    abort_all_requests: bool,
    #[serde(default = "yes")]
    flush_cache: bool,
    load_format: Option<String>,
    is_async: Option<bool>,
    manifest: Option<Value>,
}

fn yes() -> bool {
    true
}

/// `POST /update_weights_from_disk`: between two steps; requests wait meanwhile and go on under the new weights.
pub async fn update_weights(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    let mut object = body::object(&app, request).await?;
    for name in WITHOUT_EFFECT {
        object.remove(name);
    }
    let fields: UpdateFields = serde_json::from_value(Value::Object(object))
        .map_err(|error| ApiError::bad_request(format!("request: {error}")))?;
    let is_other = |format: String| !matches!(format.as_str(), "auto" | "safetensors");
    refuse(&[
        ("load_format", fields.load_format.is_some_and(is_other)),
        ("is_async", fields.is_async == Some(true)),
        ("manifest", fields.manifest.is_some()),
    ])?;
    let dir = app.weights_at(Path::new(&fields.model_path))?;
    let update = Update {
        dir,
        weight_version: fields.weight_version,
        abort_all: fields.abort_all_requests,
        flush_cache: fields.flush_cache,
    };
    let result = app.handle.ask(|answer| Command::Update(update, answer)).await?;
    let is_paused = app.handle.status.is_paused.load(Ordering::Relaxed);
    let num_paused = if is_paused { app.handle.status.num_unfinished.load(Ordering::Relaxed) } else { 0 };
    Ok(match result {
        Ok(weight_version) => Json(json!({
            "success": true, "message": "Succeeded to update model weights.", "weight_version": weight_version,
            "num_paused_requests": num_paused,
        }))
        .into_response(),
        // SGLang's clients read success and message, the others the error.
        Err(error) => {
            let mut told = error.body();
            if let Some(told) = told.as_object_mut() {
                told.insert("success".to_owned(), false.into());
                told.insert("message".to_owned(), error.message.clone().into());
            }
            (error.status, Json(told)).into_response()
        }
    })
}

/// `GET` or `POST /get_weight_version`.
pub async fn weight_version(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "weight_version": app.handle.status.weight_version() }))
}
