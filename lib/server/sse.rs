//! Server-sent events: `data: {...}` as they are made, `data: [DONE]` at the end.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::{ApiError, ApiResult};

/// Events that wait for a slow reader before their maker waits too.
const BUFFERED: usize = 16;

/// Where events go; a failure to send means the client has gone.
#[derive(Debug, Clone)]
pub struct Sink(mpsc::Sender<Bytes>);

/// The client has gone.
#[derive(Debug)]
pub struct Gone;

impl Sink {
    /// Sends an event.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn send(&self, event: &Value) -> Result<(), Gone> {
        self.0.send(Bytes::from(format!("data: {event}\n\n"))).await.map_err(|_| Gone)
    }

    /// Waits until the client has gone.
    pub async fn gone(&self) {
        self.0.closed().await;
    }
}

/// Why a stream ended early.
#[derive(Debug)]
pub enum Broken {
    /// The client has gone: there is nobody to tell.
    Gone,
    /// The request failed.
    Failed(ApiError),
}

impl From<Gone> for Broken {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<ApiError> for Broken {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// A response whose events `work` makes; an error of it becomes the last event.
pub fn stream<F>(work: impl FnOnce(Sink) -> F + Send + 'static) -> Response
where
    F: Future<Output = Result<(), Broken>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BUFFERED);
    let sink = Sink(sender);
    tokio::spawn(async move {
        let result = tokio::select! {
            result = work(sink.clone()) => result,
            () = async { sink.gone().await } => Err(Broken::Gone),
        };
        if let Err(Broken::Failed(error)) = &result {
            let _ = sink.send(&error.body()).await;
        }
        if !matches!(result, Err(Broken::Gone)) {
            let _ = sink.0.send(Bytes::from_static(b"data: [DONE]\n\n")).await;
        }
    });
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, body).into_response()
}

/// Waits for the result, but not longer than `limit`.
///
/// # Errors
/// 504 when the time is over.
pub async fn within<T>(limit: std::time::Duration, work: impl Future<Output = ApiResult<T>>) -> ApiResult<T> {
    let over = || {
        let message = format!("the answer took longer than {} s", limit.as_secs());
        ApiError::new(axum::http::StatusCode::GATEWAY_TIMEOUT, message)
    };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(over()))
}
