//! The servers: who is well, who has how much to do, and who gets the next group.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use serde_json::json;

use super::http::{CallError, Client};
use super::protocol::{About, Kind, introduce};

/// Failures in a row after which a server gets nothing more.
const MAX_FAILURES: u32 = 3;
/// Groups a server may have more than the least busy one and still get those that belong to it.
const SLACK: usize = 2;

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Its address.
    pub url: String,
    /// How it is called.
    pub client: Client,
    about: RwLock<Option<About>>,
    in_flight: AtomicUsize,
    num_failures: AtomicU32,
    is_out: AtomicBool,
}

impl Server {
    /// What it is, once it has said so.
    pub fn about(&self) -> Option<About> {
        self.about.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Weights that all servers are to have.
type Weights = (PathBuf, u64);

/// All servers.
#[derive(Debug)]
pub struct Pool {
    /// In the order of the command line.
    pub servers: Vec<Server>,
    weights: Mutex<Option<Weights>>,
}

impl Pool {
    /// Servers of which nothing is known.
    pub fn new(clients: Vec<(String, Client)>) -> Self {
        let server = |(url, client)| Server {
            url,
            client,
            about: RwLock::default(),
            in_flight: AtomicUsize::new(0),
            num_failures: AtomicU32::new(0),
            is_out: AtomicBool::new(true),
        };
        Self { servers: clients.into_iter().map(server).collect(), weights: Mutex::default() }
    }

    /// Looks at the servers that are out; those that answer come in, with the weights that all have. Returns what the
    /// last of the others said.
    pub fn look(&self) -> Option<String> {
        let mut said = None;
        for server in self.servers.iter().filter(|server| server.is_out.load(Ordering::Relaxed)) {
            match self.greet(server) {
                Ok(about) => {
                    tracing::info!("{}: {:?} serves {}", server.url, about.kind, about.model);
                    *server.about.write().unwrap_or_else(PoisonError::into_inner) = Some(about);
                    server.num_failures.store(0, Ordering::Relaxed);
                    server.is_out.store(false, Ordering::Release);
                }
                Err(error) => {
                    tracing::debug!("{}: {error}", server.url);
                    said = Some(format!("{}: {error}", server.url));
                }
            }
        }
        said
    }

    fn greet(&self, server: &Server) -> Result<About, CallError> {
        server.client.get("/health")?;
        let about = introduce(&server.client)?;
        let weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match weights {
            Some((dir, version)) if about.weight_version != version.to_string() => {
                Self::load_into(server, &about, &dir, version)?;
                Ok(About { weight_version: version.to_string(), ..about })
            }
            _ => Ok(about),
        }
    }

    /// Puts these weights into all servers that are in; those that fail are out.
    ///
    /// # Errors
    /// What the last one said, when all fail.
    pub fn load(&self, dir: &Path, version: u64) -> Result<(), String> {
        *self.weights.lock().unwrap_or_else(PoisonError::into_inner) = Some((dir.to_owned(), version));
        let load = |server: &Server| {
            let Some(about) = server.about().filter(|_| !server.is_out.load(Ordering::Acquire)) else {
                return Err("it is out".to_owned());
            };
            Self::load_into(server, &about, dir, version).map_err(|error| {
                tracing::warn!("{}: weights of version {version}: {error}", server.url);
                server.is_out.store(true, Ordering::Release);
                format!("{}: {error}", server.url)
            })
        };
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.servers.iter().map(|server| scope.spawn(move || load(server))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("it broke".to_owned())))
                .collect()
        });
        if results.iter().any(Result::is_ok) {
            return Ok(());
        }
        Err(results.into_iter().filter_map(Result::err).next_back().unwrap_or_default())
    }

    fn load_into(server: &Server, about: &About, dir: &Path, version: u64) -> Result<(), CallError> {
        if about.kind == Kind::Vllm {
            let message = "vLLM takes no weights from a folder while it runs";
            return Err(CallError::Refused { status: 404, message: message.to_owned() });
        }
        let body = json!({
            "model_path": dir.display().to_string(), "weight_version": version.to_string(), "flush_cache": true,
        });
        let answer = server.client.post("/update_weights_from_disk", &body)?;
        if answer["success"] == false {
            return Err(CallError::Failed(answer["message"].as_str().unwrap_or_default().to_owned()));
        }
        Ok(())
    }

    /// Who gets a group: the one it belongs to by its key, unless that has much more to do than the least busy.
    pub fn choose(&self, key: u64) -> Option<&Server> {
        let busy = |server: &&Server| server.in_flight.load(Ordering::Relaxed);
        let is_in = |server: &&Server| !server.is_out.load(Ordering::Acquire);
        let least = self.servers.iter().filter(is_in).map(|server| busy(&server)).min()?;
        // The highest hash of group and server: a server that leaves moves no other's groups.
        let weight = |server: &&Server| {
            let start = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xCBF2_9CE4_8422_2325;
            server.url.bytes().fold(start, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
            })
        };
        let fitting = self.servers.iter().filter(is_in).filter(|server| busy(server) <= least + SLACK);
        let chosen = fitting.max_by_key(weight)?;
        chosen.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(chosen)
    }

    /// A group has come back from its server, or has not.
    pub fn release(server: &Server, error: Option<&CallError>) {
        server.in_flight.fetch_sub(1, Ordering::Relaxed);
        match error {
            Some(CallError::Failed(message)) => {
                let num = server.num_failures.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::warn!("{}: {message}", server.url);
                if num >= MAX_FAILURES && !server.is_out.swap(true, Ordering::AcqRel) {
                    tracing::warn!("{}: out after {num} failures in a row", server.url);
                }
            }
            Some(CallError::Refused { .. }) | None => server.num_failures.store(0, Ordering::Relaxed),
        }
    }

    /// Those that are in.
    pub fn num_in(&self) -> usize {
        self.servers.iter().filter(|server| !server.is_out.load(Ordering::Acquire)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pool(num: usize) -> Pool {
        let client = |i| {
            let url = format!("http://host-{i}:1");
            let client = Client::new(&url, Duration::from_secs(1), None).unwrap();
            (url, client)
        };
        let pool = Pool::new((0..num).map(client).collect());
        pool.servers.iter().for_each(|server| server.is_out.store(false, Ordering::Relaxed));
        pool
    }

    #[test]
    fn groups_keep_their_server_while_it_is_not_far_busier() {
        let pool = pool(3);
        let first = pool.choose(7).unwrap();
        for _ in 0..5 {
            Pool::release(first, None);
            assert_eq!(pool.choose(7).unwrap().url, first.url);
        }
        // With all in flight every server gets its share.
        let chosen: Vec<&str> = (0..90).map(|_| pool.choose(7).unwrap().url.as_str()).collect();
        for server in &pool.servers {
            let share = chosen.iter().filter(|url| **url == server.url).count();
            assert!((25..=35).contains(&share), "{}: {share} of 90", server.url);
        }
        let spread: std::collections::BTreeSet<String> = (0..50)
            .map(|key| {
                let server = pool.choose(key).unwrap();
                Pool::release(server, None);
                server.url.clone()
            })
            .collect();
        assert!(spread.len() > 1, "other groups belong to other servers");
    }

    #[test]
    fn a_server_that_fails_again_and_again_is_out_and_one_that_refuses_is_not() {
        let pool = pool(2);
        let (failed, refused) = (
            CallError::Failed("gone".to_owned()),
            CallError::Refused { status: 400, message: "no".to_owned() },
        );
        for error in [&refused, &failed, &failed, &refused, &failed, &failed] {
            pool.servers[0].in_flight.fetch_add(1, Ordering::Relaxed);
            Pool::release(&pool.servers[0], Some(error));
            assert_eq!(pool.num_in(), 2);
        }
        pool.servers[0].in_flight.fetch_add(1, Ordering::Relaxed);
        Pool::release(&pool.servers[0], Some(&failed));
        assert_eq!(pool.num_in(), 1);
        for key in 0..20 {
            assert_eq!(pool.choose(key).unwrap().url, "http://host-1:1");
        }
        pool.servers[1].is_out.store(true, Ordering::Relaxed);
        assert!(pool.choose(1).is_none());
    }
}
