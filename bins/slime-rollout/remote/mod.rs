//! Samples drawn by servers: slime's own, `SGLang`, or `vLLM`.

mod http;
mod pool;
mod protocol;
mod unix;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use slime_cli::{Failure, exit};
use slime_config::{HfConfig, RunConfig};
use slime_engine::{Completion, Decode, Load, Request, Timing, Usage};
use slime_record::LogProbSpace;

use crate::args::Engines;
use crate::failure;
use crate::generator::Generator;
use http::{CallError, Client};
use pool::Pool;
use protocol::Kind;

/// Groups that are asked for at the same time of one server.
const GROUPS_PER_SERVER: usize = 64;
/// Groups that are asked for at the same time at most.
const MAX_GROUPS: usize = 512;
/// First pause before another try; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Last pause before another try.
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// Time between two looks at servers that are out.
const LOOK: Duration = Duration::from_secs(1);
/// How long one step waits for an answer.
const STEP: Duration = Duration::from_millis(50);
/// Stack of a thread that waits for answers.
const STACK_BYTES: usize = 512 << 10;

/// A group on its way to a server and back.
struct Asked {
    request: Request,
    rid: String,
}

/// What became of it.
struct Answered {
    id: u64,
    result: Result<(Vec<Completion>, Instant, Instant), Failure>,
}

/// What the threads share.
struct Shared {
    pool: Pool,
    queue: Mutex<Receiver<Asked>>,
    answers: Sender<Answered>,
    cancelled: Mutex<HashSet<u64>>,
    decode: Arc<Decode>,
    patience: Duration,
    version: std::sync::atomic::AtomicU64,
}

/// Servers that draw samples.
pub struct Remote {
    shared: Arc<Shared>,
    queue: Sender<Asked>,
    answers: Receiver<Answered>,
    /// Samples and moment of each request on its way.
    on_way: HashMap<u64, (u32, Instant)>,
    context_len: usize,
    num_wanted: usize,
    /// Makes this process' names of requests its own.
    name: String,
    usage: Usage,
    timings: Option<Vec<Timing>>,
}

impl Remote {
    /// Greets the servers; at least one must answer within the patience asked for.
    ///
    /// # Errors
    /// None does, or the weight directory's configuration cannot be read.
    pub fn connect(engines: &Engines, config: &RunConfig, decode: Arc<Decode>) -> Result<Self, Failure> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| Failure::open(path.display(), &error))
        };
        let token = engines.engine_token_file.as_ref().map(read).transpose()?;
        let timeout = Duration::from_secs(engines.engine_timeout_s);
        let client = |url: &String| Ok((url.clone(), Client::new(url, timeout, token.as_deref())?));
        let clients = engines.engine.iter().map(client).collect::<Result<_, Failure>>()?;
        let pool = Pool::new(clients);
        let patience = Duration::from_secs(engines.engine_patience_s);
        let began = Instant::now();
        let mut said = pool.look();
        while pool.num_in() == 0 {
            if began.elapsed() >= patience {
                let said = said.unwrap_or_default();
                let message = format!("no server answers within {} s: {said}", patience.as_secs());
                return Err(Failure::new(exit::UNAVAILABLE, message)
                    .with_hint("start one: slime-rollout serve --weights DIR --port N --token-file FILE"));
            }
            std::thread::sleep(LOOK.min(patience));
            said = pool.look();
        }
        let hf = HfConfig::load(&config.model.path).map_err(failure!())?;
        let told = pool.servers.iter().filter_map(|server| server.about()?.context_len);
        let context_len = told.chain([hf.max_position_embeddings]).min().unwrap_or_default();
        warn_of_raw_log_probs(&pool, config);
        let num_servers = engines.engine.len();
        let n = config.rollout.n_samples_per_prompt.unwrap_or(1).max(1) as usize;
        let num_wanted = 2 * config.rollout.max_in_flight as usize * num_servers;
        let num_threads = num_wanted.div_ceil(n).clamp(1, (GROUPS_PER_SERVER * num_servers).min(MAX_GROUPS));
        let (queue, receiver) = channel();
        let (sender, answers) = channel();
        let shared = Arc::new(Shared {
            pool,
            queue: Mutex::new(receiver),
            answers: sender,
            cancelled: Mutex::default(),
            decode,
            patience,
            version: 0.into(),
        });
        start_threads(&shared, num_threads)?;
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("slime-{}-{}", std::process::id(), started.as_nanos());
        let (on_way, usage) = (HashMap::new(), Usage::default());
        Ok(Self { shared, queue, answers, on_way, context_len, num_wanted, name, usage, timings: None })
    }

    fn rid(&self, id: u64) -> String {
        format!("{}-{id}.", self.name)
    }

    fn take(&mut self, answered: Answered) -> Result<Vec<Completion>, Failure> {
        let Answered { id, result } = answered;
        let Some((_, submitted)) = self.on_way.remove(&id) else {
            self.shared.cancelled.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            return Ok(Vec::new());
        };
        let (completions, started, finished) = result?;
        self.usage.num_steps += 1;
        for Completion { index, tokens, .. } in &completions {
            self.usage.num_sampled_tokens += tokens.len() as u64;
            if let Some(timings) = &mut self.timings {
                // Servers do not tell when the first token came.
                let (index, num_tokens) = (*index, tokens.len());
                timings.push(Timing {
                    id,
                    index,
                    submitted,
                    started,
                    first_token: started,
                    finished,
                    num_tokens,
                });
            }
        }
        Ok(completions)
    }
}

/// `vLLM` tells log-probs of the plain logits unless it is started otherwise.
fn warn_of_raw_log_probs(pool: &Pool, config: &RunConfig) {
    let has_vllm =
        pool.servers.iter().any(|server| server.about().is_some_and(|about| about.kind == Kind::Vllm));
    if has_vllm && (config.rollout.temperature - 1.0).abs() > f64::EPSILON {
        tracing::warn!(
            "vLLM tells log-probs before temperature unless it is started with --logprobs-mode processed_logprobs"
        );
    }
}

fn start_threads(shared: &Arc<Shared>, num_threads: usize) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(exit::OS, format!("cannot start a thread: {error}"));
    for _ in 0..num_threads {
        let shared = shared.clone();
        let thread = std::thread::Builder::new().name("engine client".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || shared.work()).map_err(failed)?;
    }
    let shared = Arc::downgrade(shared);
    let thread = std::thread::Builder::new().name("engine health".to_owned());
    let look = move || {
        while let Some(shared) = shared.upgrade() {
            shared.pool.look();
            drop(shared);
            std::thread::sleep(LOOK);
        }
    };
    thread.spawn(look).map_err(failed)?;
    Ok(())
}

impl Shared {
    /// One group after the other, until nobody asks any more.
    fn work(&self) {
        loop {
            let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(asked) = next else { return };
            let id = asked.request.id;
            let result = self.ask(&asked);
            if self.answers.send(Answered { id, result }).is_err() {
                return;
            }
        }
    }

    fn is_cancelled(&self, id: u64) -> bool {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Asks servers until one answers, with growing pauses.
    fn ask(&self, asked: &Asked) -> Result<(Vec<Completion>, Instant, Instant), Failure> {
        let id = asked.request.id;
        let (mut failing, mut pause) = (None, FIRST_PAUSE);
        let mut last = "no server is in".to_owned();
        while !self.is_cancelled(id) {
            if let Some(server) = self.pool.choose(key(&asked.request))
                && let Some(about) = server.about()
            {
                let (path, body) = protocol::call(&about, &asked.rid, &asked.request);
                let started = Instant::now();
                let version = self.version.load(std::sync::atomic::Ordering::Relaxed);
                let answer = server.client.post(path, &body);
                let drawn =
                    answer.and_then(|answer| protocol::read(&about, &answer, &asked.request, version));
                Pool::release(server, drawn.as_ref().err());
                match drawn {
                    Ok(drawn) => {
                        let completions = protocol::completions(id, drawn, &*self.decode);
                        return Ok((completions, started, Instant::now()));
                    }
                    Err(error @ CallError::Refused { .. }) => {
                        let code = if matches!(error, CallError::Refused { status: 401 | 403, .. }) {
                            exit::PERMISSION
                        } else {
                            exit::DATA
                        };
                        return Err(Failure::new(code, format!("{}: {error}", server.url)));
                    }
                    Err(CallError::Failed(message)) => last = format!("{}: {message}", server.url),
                }
            }
            if failing.get_or_insert_with(Instant::now).elapsed() >= self.patience {
                let message =
                    format!("no server generated for {} s; the last word: {last}", self.patience.as_secs());
                return Err(Failure::new(exit::UNAVAILABLE, message));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
        let now = Instant::now();
        Ok((Vec::new(), now, now))
    }
}

/// What a group is known by: its prompt and its place.
fn key(request: &Request) -> u64 {
    let seed = request.params.seed;
    (seed.step << 32) ^ u64::from(seed.group)
}

impl Generator for Remote {
    fn submit(&mut self, request: Request) -> Result<(), Failure> {
        let (id, submitted) = (request.id, Instant::now());
        self.on_way.insert(id, (request.params.n, submitted));
        let asked = Asked { rid: self.rid(id), request };
        let gone = |_| Failure::new(exit::BUG, "the threads that ask servers have ended");
        self.queue.send(asked).map_err(gone)
    }

    fn step(&mut self) -> Result<Vec<Completion>, Failure> {
        let mut completions = Vec::new();
        match self.answers.recv_timeout(STEP) {
            Ok(answered) => completions.extend(self.take(answered)?),
            Err(RecvTimeoutError::Timeout) => return Ok(completions),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(exit::BUG, "the threads that ask servers have ended"));
            }
        }
        while let Ok(answered) = self.answers.try_recv() {
            completions.extend(self.take(answered)?);
        }
        Ok(completions)
    }

    /// Servers keep what they have.
    fn abort(&mut self, id: u64) -> Vec<Completion> {
        if self.on_way.remove(&id).is_none() {
            return Vec::new();
        }
        self.shared.cancelled.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        let body = json!({ "rid": self.rid(id) });
        for server in self
            .shared
            .pool
            .servers
            .iter()
            .filter(|server| server.about().is_some_and(|a| a.kind != Kind::Vllm))
        {
            if let Err(error) = server.client.post_brief("/abort_request", &body) {
                tracing::debug!("{}: {error}", server.url);
            }
        }
        Vec::new()
    }

    fn num_unfinished(&self) -> usize {
        self.on_way.values().map(|(n, _)| *n as usize).sum()
    }

    fn num_wanted(&self) -> usize {
        self.num_wanted
    }

    fn context_len(&self) -> usize {
        self.context_len
    }

    fn load(&self) -> Load {
        Load { num_running: self.num_unfinished(), ..Load::default() }
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn version(&self) -> u64 {
        self.shared.version.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn reload(&mut self, dir: &Path, version: u64) -> Result<(), Failure> {
        let dir = dir.canonicalize().map_err(|error| Failure::open(dir.display(), &error))?;
        let failed = |message: String| {
            Failure::new(exit::UNAVAILABLE, format!("no server loads version {version}: {message}"))
                .with_hint("start servers with --weight-root RUN/weights")
        };
        self.shared.pool.load(&dir, version).map_err(failed)?;
        self.shared.version.store(version, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn keep_timings(&mut self) {
        self.timings.get_or_insert_default();
    }

    fn take_timings(&mut self) -> Vec<Timing> {
        self.timings.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn log_prob_space(&self) -> LogProbSpace {
        let is_ours = |server: &pool::Server| server.about().is_none_or(|about| about.kind == Kind::Slime);
        if self.shared.pool.servers.iter().all(is_ours) {
            LogProbSpace::AfterTruncation
        } else {
            LogProbSpace::BeforeTruncation
        }
    }
}
