//! What a client gets instead of an answer: a status and `{"error": {...}}` as `OpenAI`'s and `SGLang`'s clients read it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Seconds after which a refused client may come again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An error of one request; the others never notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// What went wrong, for people.
    pub message: String,
    /// The field of the request that is wrong, where it is one.
    pub param: Option<String>,
}

impl ApiError {
    /// An error with this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None }
    }

    /// The request is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field of the request is wrong.
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_owned()), ..Self::bad_request(message) }
    }

    /// There is no room at the moment, or the server is going.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// The server failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// `OpenAI`'s word for the status.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 | 503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "internal_error",
        }
    }

    /// The body: `OpenAI`'s object, of which `SGLang`'s clients read `error.message`.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.status.as_u16(),
        } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The result of a route.
pub type ApiResult<T> = Result<T, ApiError>;
