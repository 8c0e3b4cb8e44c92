//! Bodies of requests: JSON objects of bounded size that come in bounded time.

use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use serde_json::{Map, Value};
use tokio_stream::StreamExt;

use crate::app::App;
use crate::{ApiError, ApiResult};

/// Time that the rest of a body too large may take; a client that is still sending does not read its error.
const REST: Duration = Duration::from_secs(10);

/// The body as a JSON object; nothing at all is an empty one.
///
/// # Errors
/// Too large, too slow, not JSON, not an object.
pub async fn object(app: &App, request: Request) -> ApiResult<Map<String, Value>> {
    let bytes = bytes(app, request).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::bad_request("the body: expected a JSON object")),
        Err(error) => Err(ApiError::bad_request(format!("the body: not JSON: {error}"))),
    }
}

async fn bytes(app: &App, request: Request) -> ApiResult<Vec<u8>> {
    let most = app.config.max_body_bytes;
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|len| len.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    let mut stream = request.into_body().into_data_stream();
    let too_large =
        || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body: expected at most {most} bytes"));
    if announced > most {
        discard(&mut stream).await;
        return Err(too_large());
    }
    let read = async {
        let mut bytes = Vec::with_capacity(announced);
        while let Some(chunk) = stream.next().await {
            let chunk: Bytes =
                chunk.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
            if bytes.len() + chunk.len() > most {
                discard(&mut stream).await;
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let limit = app.config.read_timeout;
    tokio::time::timeout(limit + REST, read)
        .await
        .unwrap_or_else(|_| Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to come")))
}

/// Reads on without keeping anything.
async fn discard(stream: &mut BodyDataStream) {
    let rest = async { while let Some(Ok(_)) = stream.next().await {} };
    let _ = tokio::time::timeout(REST, rest).await;
}
