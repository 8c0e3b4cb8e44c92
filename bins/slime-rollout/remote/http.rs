//! Calls of a server: JSON out, JSON in, and which failures are worth another try.

use std::time::Duration;

use serde_json::Value;
use slime_cli::Failure;
use ureq::Agent;
use ureq::config::Config;

use super::unix::{Nowhere, SocketConnector};

/// Time to connect, and for calls that only ask.
const SHORT: Duration = Duration::from_secs(10);
/// Bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 1 << 30;

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The server does not want this call; it would not want it again.
    Refused {
        /// The status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The server did not answer, or is not able to at the moment.
    Failed(String),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { status, message } => write!(formatter, "{message} (status {status})"),
            Self::Failed(message) => formatter.write_str(message),
        }
    }
}

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    patient: Agent,
    brief: Agent,
    /// What stands before the path of a call.
    base: String,
    authorization: Option<String>,
}

impl Client {
    /// A client of the server at `url` (`http://HOST:PORT` or `unix:PATH`) whose calls may take `timeout`; `token` is what
    /// the server wants to be shown.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(url: &str, timeout: Duration, token: Option<&str>) -> Result<Self, Failure> {
        let config = |timeout| -> Config {
            Agent::config_builder()
                .timeout_global(Some(timeout))
                .timeout_connect(Some(SHORT))
                .http_status_as_error(false)
                .build()
        };
        let authorization = token.map(|token| format!("Bearer {}", token.trim()));
        let (patient, brief) = (config(timeout), config(SHORT));
        if let Some(path) = url.strip_prefix("unix:") {
            let agent = |config| Agent::with_parts(config, SocketConnector(path.into()), Nowhere);
            let base = "http://localhost".to_owned();
            return Ok(Self { patient: agent(patient), brief: agent(brief), base, authorization });
        }
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::usage(format!("--engine {url}: expected http://HOST:PORT or unix:PATH")));
        }
        let base = url.trim_end_matches('/').to_owned();
        Ok(Self { patient: patient.into(), brief: brief.into(), base, authorization })
    }

    /// Asks for something that takes no time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn get(&self, path: &str) -> Result<Value, CallError> {
        let mut request = self.brief.get(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        answer(request.call())
    }

    /// Gives `body` and waits for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.post_with(&self.patient, path, body)
    }

    /// The same for something that takes no time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn post_brief(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.post_with(&self.brief, path, body)
    }

    fn post_with(&self, agent: &Agent, path: &str, body: &Value) -> Result<Value, CallError> {
        let mut request =
            agent.post(format!("{}{path}", self.base)).header("Content-Type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        answer(request.send(body.to_string()))
    }
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, CallError> {
    let mut response = result.map_err(|error| CallError::Failed(error.to_string()))?;
    let status = response.status().as_u16();
    let text = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
    let text = text.map_err(|error| CallError::Failed(error.to_string()))?;
    let value: Option<Value> = serde_json::from_str(&text).ok();
    match status {
        // SGLang answers some calls with text or nothing.
        200..=299 => Ok(value.unwrap_or(Value::String(text))),
        408 | 429 | 500..=599 => Err(CallError::Failed(format!("{} (status {status})", said(value, &text)))),
        _ => Err(CallError::Refused { status, message: said(value, &text) }),
    }
}

/// What the error says, in the forms of our servers, of `SGLang` and of vLLM.
fn said(value: Option<Value>, text: &str) -> String {
    let value = value.unwrap_or_default();
    let places = [&value["error"]["message"], &value["message"], &value["detail"], &value["error"]];
    let told = places.iter().find_map(|place| place.as_str());
    told.map_or_else(|| text.trim().chars().take(500).collect(), str::to_owned)
}
