//! A client of servers that reward: JSON in, JSON out, over kept connections, retried with back-off, so many at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::options::Options;

/// A request may take so long, unless told otherwise (as slime's `remote_rm`).
const TIMEOUT_S: f64 = 120.0;
/// Tries of a request (as slime's `remote_rm`).
const ATTEMPTS: usize = 10;
/// Requests at a time (as slime's `remote_rm`).
const CONCURRENCY: usize = 64;
/// The longest pause between tries, in units of `backoff_s`.
const LONGEST_PAUSE: f64 = 30.0;

/// A server and how it is asked.
pub(crate) struct Client {
    agent: Agent,
    url: String,
    token: Option<String>,
    attempts: usize,
    backoff_s: f64,
    concurrency: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

/// Why a try failed.
enum Failed {
    /// Another try may help.
    ForNow(String),
    /// It will not.
    ForGood(String),
}

impl Client {
    /// Reads `url` (or the first word), `key_env`, `timeout_s`, `attempts`, `backoff_s` and `concurrency`; `path` is put
    /// behind the address.
    pub(crate) fn new(options: &mut Options, path: &str) -> Result<Self> {
        let url = if let Some(url) = options.text("url")? {
            url
        } else {
            let word = options.word()?;
            options.needed_word("the address of a server", word)?
        };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(options.wrong("url", "http://.. or https://..", url));
        }
        let token = match options.text("key_env")? {
            None => None,
            Some(name) => Some(std::env::var(&name).map_err(|_| {
                options.wrong("key_env", "the name of an environment variable that is set", name)
            })?),
        };
        let timeout = options.duration("timeout_s", TIMEOUT_S)?;
        let concurrency = options.count("concurrency", CONCURRENCY)?;
        let host = url.split("://").nth(1).unwrap_or_default();
        let is_here = ["127.", "localhost", "[::1]"].iter().any(|name| host.starts_with(name));
        let builder = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_idle_connections(concurrency)
            .max_idle_connections_per_host(concurrency);
        // A proxy of the environment is for the world outside.
        let builder = if is_here { builder.proxy(None) } else { builder };
        Ok(Self {
            agent: builder.build().into(),
            url: format!("{}{path}", url.trim_end_matches('/')),
            token,
            attempts: options.count("attempts", ATTEMPTS)?,
            backoff_s: options.duration("backoff_s", 1.0)?.as_secs_f64(),
            concurrency,
            free: Mutex::new(concurrency),
            freed: Condvar::new(),
        })
    }

    /// The address that is asked.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The error about a server.
    pub(crate) fn failure(&self, problem: String) -> Error {
        Error::Server { url: self.url.clone(), problem }
    }

    /// Asks; the error says in words why there is no answer.
    pub(crate) fn post(&self, body: &Value) -> std::result::Result<Value, String> {
        let text = body.to_string();
        let mut attempt = 0;
        loop {
            let failed = match self.try_post(&text) {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            attempt += 1;
            match failed {
                Failed::ForNow(problem) if attempt >= self.attempts => {
                    return Err(format!("{problem} (after {attempt} tries)"));
                }
                Failed::ForNow(_) => std::thread::sleep(self.pause(attempt, &text)),
                Failed::ForGood(problem) => return Err(problem),
            }
        }
    }

    /// min(2^k, 30) and up to one more, in units of `backoff_s`, after the k-th try from 0.
    fn pause(&self, attempt: usize, text: &str) -> Duration {
        let power = f64::from(1_u32 << (attempt - 1).min(16));
        let jitter =
            (xxh3_64(text.as_bytes()).rotate_left(attempt as u32) >> 11) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64((power.min(LONGEST_PAUSE) + jitter) * self.backoff_s)
    }

    fn try_post(&self, text: &str) -> std::result::Result<Value, Failed> {
        let _slot = self.slot();
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut response = request.send(text).map_err(|error| Failed::ForNow(error.to_string()))?;
        let status = response.status().as_u16();
        let body = response.body_mut().read_to_string().map_err(|error| Failed::ForNow(error.to_string()))?;
        let shown = || body.chars().take(200).collect::<String>();
        match status {
            200..=299 => serde_json::from_str(&body)
                .map_err(|error| Failed::ForGood(format!("expected JSON, got {:?}: {error}", shown()))),
            408 | 425 | 429 | 500.. => Err(Failed::ForNow(format!("status {status}: {:?}", shown()))),
            _ => Err(Failed::ForGood(format!("status {status}: {:?}", shown()))),
        }
    }

    fn slot(&self) -> Slot<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Slot(self)
    }

    /// Calls `ask` for every item, as many at a time as requests may be; results are in their order.
    pub(crate) fn map<T: Sync, R: Send>(&self, items: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
        std::thread::scope(|scope| {
            for _ in 0..self.concurrency.min(items.len()) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = items.get(at) else { break };
                        let result = ask(item);
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, result)| result).collect()
    }
}

/// A place among the requests of a time.
struct Slot<'a>(&'a Client);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}
