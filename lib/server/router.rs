//! All routes, behind the check of the token and the count of answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::app::App;
use crate::token::Token;
use crate::{ApiError, control, generate, info, openai};

/// The routes; `token` is what a client has to show, none where the socket itself keeps others out.
pub fn router(app: Arc<App>, token: Option<Token>) -> Router {
    let either = |route: axum::routing::MethodRouter<Arc<App>>, other| route.merge(other);
    let guarded = Router::new()
        .route("/generate", post(generate::generate))
        .route("/abort_request", post(control::abort_request))
        .route("/pause_generation", post(control::pause_generation))
        .route("/continue_generation", post(control::continue_generation))
        .route("/flush_cache", either(get(control::flush_cache), post(control::flush_cache)))
        .route("/update_weights_from_disk", post(control::update_weights))
        .route("/get_weight_version", either(get(control::weight_version), post(control::weight_version)))
        .route("/health_generate", get(info::health_generate))
        .route("/server_info", get(info::server_info))
        .route("/get_server_info", get(info::server_info))
        .route("/model_info", get(info::model_info))
        .route("/get_model_info", get(info::model_info))
        .route("/v1/loads", get(info::loads))
        .route("/v1/models", get(info::models))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat_completions))
        .route("/metrics", get(info::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(Arc::new(token), check_token));
    Router::new()
        .route("/health", get(info::health))
        .merge(guarded)
        .layer(middleware::from_fn_with_state(app.clone(), count))
        .with_state(app)
}

async fn check_token(State(token): State<Arc<Option<Token>>>, request: Request, next: Next) -> Response {
    let Some(token) = token.as_ref() else { return next.run(request).await };
    let shown = request.headers().get(header::AUTHORIZATION).map(axum::http::HeaderValue::as_bytes);
    let bearer = shown.and_then(|value| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
    });
    match bearer {
        Some(shown) if token.is(shown) => next.run(request).await,
        Some(_) => refused("the token is not that of the token file"),
        None => {
            refused("no token: expected the header \"Authorization: Bearer\" with that of the token file")
        }
    }
}

fn refused(message: &str) -> Response {
    ApiError::new(StatusCode::UNAUTHORIZED, message).into_response()
}

async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    app.handle.status.answered(route.as_deref().unwrap_or("other"), response.status().as_u16());
    response
}

async fn no_route(request: Request) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("no route {} {}", request.method(), request.uri().path()))
}

async fn no_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
