//! The routes over an engine whose answers are known exactly, without a socket.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use slime_engine::naive_model::NaiveModel;
use slime_engine::{Batch, Engine, EngineConfig, ForwardModel};
use slime_tokenizer::Tokenizer;
use tower::ServiceExt;

use super::letters;
use crate::app::App;
use crate::router::router;
use crate::{Driver, Handle, Limits, ServedModel, ServerConfig, Status, Token};

/// The naive model; a folder whose name is a number holds weights of that salt, and token 27 in a prompt breaks logits.
#[derive(Default)]
struct Fragile(NaiveModel);

/// The token that breaks logits.
pub const POISON: u32 = 27;

impl ForwardModel for Fragile {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_len(&self) -> usize {
        self.0.context_len()
    }

    fn allocate(
        &mut self,
        num_blocks: usize,
        block_size: usize,
        max_num_seqs: usize,
    ) -> slime_engine::Result<()> {
        self.0.allocate(num_blocks, block_size, max_num_seqs)
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> slime_engine::Result<()> {
        self.0.forward(batch, logits)?;
        let poisoned: Vec<usize> = (0..batch.tokens.len())
            .filter(|&row| batch.tokens[row] == POISON && batch.positions[row] == 0)
            .collect();
        let mut end = 0;
        for &q_len in &batch.q_lens {
            let start = end;
            end += q_len as usize;
            if poisoned.iter().any(|row| (start..end).contains(row)) {
                for (i, row) in batch.logit_rows.iter().enumerate() {
                    if (start..end).contains(&(*row as usize)) {
                        logits[i * 29] = f32::NAN;
                    }
                }
            }
        }
        Ok(())
    }
}

impl ServedModel for Fragile {
    fn load(&mut self, dir: &Path) -> slime_engine::Result<()> {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        self.0.salt = name.parse().map_err(|_| slime_engine::Error::Model {
            dir: dir.to_owned(),
            message: "no weights".to_owned(),
            exit_code: 65,
        })?;
        Ok(())
    }
}

/// Routes, and the thread of the engine behind them.
pub struct Server {
    pub router: Router,
    pub handle: Handle,
    pub dir: tempfile::TempDir,
    driver: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn new() -> Self {
        Self::with(64, 8, 1000, None)
    }

    /// The same with another tokenizer.
    pub fn speaking(tokenizer: Tokenizer) -> Self {
        Self::made(64, 8, 1000, None, tokenizer)
    }

    pub fn with(num_blocks: usize, max_num_seqs: usize, max_queued: usize, token: Option<Token>) -> Self {
        Self::made(num_blocks, max_num_seqs, max_queued, token, letters())
    }

    fn made(
        num_blocks: usize,
        max_num_seqs: usize,
        max_queued: usize,
        token: Option<Token>,
        tokenizer: Tokenizer,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("0")).unwrap();
        let config = EngineConfig {
            block_size: 4,
            num_blocks,
            max_num_seqs,
            max_batch_tokens: 64,
            num_draft_tokens: 4,
            ..EngineConfig::default()
        };
        let tokenizer = Arc::new(tokenizer);
        let decode = tokenizer.clone();
        let decode = Arc::new(move |tokens: &[u32]| decode.decode(tokens, true).unwrap());
        let engine = Engine::new(Fragile::default(), decode, &config, 0).unwrap();
        let limits = Limits { vocab_size: 29, context_len: 64, num_slots: num_blocks * 4, max_num_seqs };
        let status = Arc::new(Status::new(limits, "0"));
        let (orders, receiver) = mpsc::channel();
        let handle = Handle::new(orders, status.clone(), max_queued);
        let driver = Driver::new(engine, dir.path().join("0"), receiver, status);
        let driver = std::thread::spawn(move || driver.run().unwrap());
        let config = ServerConfig {
            model_path: dir.path().join("0"),
            model_name: "naive".to_owned(),
            weight_roots: vec![dir.path().canonicalize().unwrap()],
            tool_calls: None,
            max_body_bytes: 100_000,
            max_queued,
            read_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_secs(60),
            max_connections: 8,
        };
        let app = Arc::new(App::new(config, handle.clone(), tokenizer, vec![28]));
        Self { router: router(app, token), handle, dir, driver: Some(driver) }
    }

    pub async fn call(&self, method: &str, path: &str, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
        let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        (status, axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec())
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let (status, bytes) = self.call("POST", path, body.to_string()).await;
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    pub async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn events(&self, path: &str, body: Value) -> Vec<Value> {
        let (status, bytes) = self.call("POST", path, body.to_string()).await;
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(status, 200, "{text}");
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events
            .iter()
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    /// Waits until this many samples wait or run.
    pub async fn has_unfinished(&self, num: usize) {
        while self.handle.status.num_unfinished.load(Ordering::Acquire) != num {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until nothing runs, waits or is in the cache.
    pub async fn rests(&self) {
        for _ in 0..12_000 {
            let (_, bytes) = self.call("GET", "/v1/loads", Body::empty()).await;
            let loads: Value = serde_json::from_slice(&bytes).unwrap();
            let load = &loads["loads"][0];
            let left = self.handle.status.num_unfinished.load(Ordering::Relaxed);
            if load["num_total_reqs"] == 0 && load["num_used_tokens"] == 0 && left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("something is left in the engine");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.order(crate::job::Command::Stop).ok();
        let ended = self.driver.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A prompt of this length that is the same each time.
pub fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 5 + 3) % 26).collect()
}

/// Sampling parameters whose samples are the same each time.
pub fn seeded(max_new_tokens: usize, n: u32) -> Value {
    json!({"max_new_tokens": max_new_tokens, "n": n, "temperature": 0.8, "ignore_eos": true,
           "sample_seed": {"seed": 5, "step": 1, "group": 2, "index": 0}})
}

/// The log-probs and tokens of an answer of `/generate`.
pub fn pairs(answer: &Value) -> Vec<(f64, u64)> {
    let list = answer["meta_info"]["output_token_logprobs"].as_array().unwrap();
    list.iter().map(|entry| (entry[0].as_f64().unwrap(), entry[1].as_u64().unwrap())).collect()
}
