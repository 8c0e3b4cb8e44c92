//! What all routes share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slime_tokenizer::Tokenizer;

use crate::tool_calls::Family;
use crate::{ApiError, ApiResult, Grammars, Handle, Language};

/// What a server is called and where its weights may come from.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The weight directory it starts with.
    pub model_path: PathBuf,
    /// What `OpenAI`'s clients call the model.
    pub model_name: String,
    /// Folders below which other weights may lie; without any only `model_path` itself may be loaded again.
    pub weight_roots: Vec<PathBuf>,
    /// How responses spell calls of tools; as the chat template says where it is not named.
    pub tool_calls: Option<Family>,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Samples that may wait or run.
    pub max_queued: usize,
    /// Longest time for a request's head to come, and for its body.
    pub read_timeout: Duration,
    /// Longest time for an answer.
    pub request_timeout: Duration,
    /// Connections at the same time.
    pub max_connections: usize,
}

/// The state of all routes.
#[derive(Debug)]
pub struct App {
    /// Names and limits.
    pub config: ServerConfig,
    /// The way to the engine.
    pub handle: Handle,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end a response unless a request ignores them.
    pub stop_token_ids: Vec<u32>,
    /// Compiler of languages.
    pub grammars: Arc<Grammars>,
    /// How responses spell calls of tools.
    pub tool_calls: Family,
    /// When the server started.
    pub started: Instant,
    /// Seconds since 1970 at that time.
    pub started_s: u64,
}

impl App {
    /// The state around an engine.
    pub fn new(
        config: ServerConfig,
        handle: Handle,
        tokenizer: Arc<Tokenizer>,
        stop_token_ids: Vec<u32>,
    ) -> Self {
        let vocab_size = handle.status.limits.vocab_size;
        let grammars = Arc::new(Grammars::new(tokenizer.clone(), vocab_size, stop_token_ids.clone()));
        let tool_calls = config.tool_calls.unwrap_or_else(|| Family::of(&tokenizer.chat_template_source()));
        let started_s = now_s() as u64;
        let started = Instant::now();
        Self { config, handle, tokenizer, stop_token_ids, grammars, tool_calls, started, started_s }
    }

    /// Compiles a language beside the threads that answer others.
    ///
    /// # Errors
    /// What the compiler says.
    pub async fn constraint(&self, language: Language) -> ApiResult<slime_engine::Constraint> {
        let grammars = self.grammars.clone();
        blocking(move || grammars.compile(&language)).await
    }

    /// The ids of a text with the special tokens the tokenizer puts around it.
    ///
    /// # Errors
    /// The tokenizer refuses.
    pub async fn encode(&self, text: String, adds_special_tokens: bool) -> ApiResult<Vec<u32>> {
        let tokenizer = self.tokenizer.clone();
        blocking(move || {
            let ids = if adds_special_tokens {
                tokenizer.encode_with_special_tokens(&text)
            } else {
                tokenizer.encode(&text)
            };
            ids.map_err(|error| ApiError::bad_request(error.to_string()))
        })
        .await
    }

    /// The directory of other weights, if they may come from there.
    ///
    /// # Errors
    /// 404 where nothing is, 403 outside the folders of weights.
    pub fn weights_at(&self, path: &Path) -> ApiResult<PathBuf> {
        let is_below = |path: &Path| {
            let own = self.config.model_path.canonicalize().is_ok_and(|own| own == path);
            own || self.config.weight_roots.iter().any(|root| path.starts_with(root))
        };
        // What is outside is not even told to be there.
        let outside = || {
            let message = format!("{}: weights may only come from below a --weight-root", path.display());
            ApiError::new(axum::http::StatusCode::FORBIDDEN, message)
        };
        if !path.is_absolute() {
            return Err(ApiError::field("model_path", "model_path: expected an absolute path"));
        }
        match path.canonicalize() {
            Ok(found) if is_below(&found) => Ok(found),
            Ok(_) => Err(outside()),
            Err(error) => {
                let parent = path.ancestors().skip(1).find_map(|parent| parent.canonicalize().ok());
                if parent.is_some_and(|parent| is_below(&parent)) {
                    let message = format!("{}: {error}", path.display());
                    Err(ApiError::new(axum::http::StatusCode::NOT_FOUND, message))
                } else {
                    Err(outside())
                }
            }
        }
    }
}

/// Runs what computes for long on a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ApiError::internal(format!("a request's work broke off: {error}"))))
}

/// Seconds since 1970.
pub fn now_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// A number nobody can guess the next of, for names of requests and seeds.
pub fn any_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
