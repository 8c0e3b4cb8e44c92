//! A server from its first to its last request: connections on threads of their own, the engine on the caller's.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use slime_engine::Engine;
use slime_tokenizer::Tokenizer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::job::{Command, Which};
use crate::router::router;
use crate::served_model::ServedModel;
use crate::socket::{Listener, is_welcome};
use crate::{Driver, Error, Handle, Limits, Result, ServerConfig, Socket, Status};

/// Threads that serve connections.
const NUM_THREADS: usize = 2;
/// Time between two looks at the wish to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Time in which answers that are made still reach their clients.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Header fields of a request.
const MAX_HEADERS: usize = 64;
/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Pause after a connection could not be taken (no file descriptors left).
const BREATH: Duration = Duration::from_millis(50);

/// What a server needs beside its engine.
pub struct Serving {
    /// Names and limits.
    pub config: ServerConfig,
    /// Where clients come in.
    pub socket: Socket,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end a response.
    pub stop_token_ids: Vec<u32>,
    /// What the first weights are called.
    pub weight_version: String,
    /// Samples computed at once.
    pub max_num_seqs: usize,
    /// Whether the server should end: looked at now and then.
    pub wants_drain: fn() -> bool,
    /// Time that running requests have then.
    pub drain_timeout: Duration,
}

/// Serves until a drain is wished for and running requests have ended. `ready` is called with the server's URL when it
/// takes requests.
///
/// # Errors
/// The system refuses threads; the engine failed.
pub fn serve<M: ServedModel>(
    mut engine: Engine<M>,
    serving: Serving,
    ready: impl FnOnce(&str),
) -> Result<()> {
    let Serving { config, socket, tokenizer, stop_token_ids, .. } = serving;
    let limits = Limits {
        vocab_size: engine.vocab_size(),
        context_len: engine.context_len(),
        num_slots: engine.num_slots(),
        max_num_seqs: serving.max_num_seqs,
    };
    let status = Arc::new(Status::new(limits, &serving.weight_version));
    let (orders, receiver) = mpsc::channel();
    let handle = Handle::new(orders, status.clone(), config.max_queued);
    let driver = Driver::new(engine, config.model_path.clone(), receiver, status);
    let app = Arc::new(App::new(config, handle.clone(), tokenizer, stop_token_ids));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NUM_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    let (end, ended) = watch::channel(false);
    let url = socket.url().to_owned();
    let acceptor = {
        let _inside = runtime.enter();
        let listener = Incoming::new(socket.listener).map_err(Error::Start)?;
        runtime.spawn(accept(listener, app, socket.token, ended))
    };
    runtime.spawn(drain(handle, serving.wants_drain, serving.drain_timeout));
    ready(&url);
    let result = driver.run();
    // Whoever was told of an end still gets it.
    let _ = end.send(true);
    runtime.block_on(async { drop(tokio::time::timeout(LAST_WORDS, acceptor).await) });
    runtime.shutdown_timeout(LAST_WORDS);
    result.map_err(Error::from)
}

/// Waits for the wish to stop, then for running requests, and stops the engine.
async fn drain(handle: Handle, wants_drain: fn() -> bool, timeout: Duration) {
    while !wants_drain() {
        tokio::time::sleep(LOOK).await;
    }
    let status = &handle.status;
    status.is_draining.store(true, Ordering::Relaxed);
    tracing::info!("draining: {} samples are on their way", status.num_unfinished.load(Ordering::Relaxed));
    let idle = async {
        while status.num_unfinished.load(Ordering::Acquire) > 0 && !status.is_paused.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(timeout, idle).await.is_err() || status.is_paused.load(Ordering::Relaxed) {
        // What they have so far is their answer. An engine that has ended needs no order.
        let _ = handle.order(Command::Abort(Which::All));
    }
    let _ = handle.order(Command::Stop);
}

/// A listening socket of either kind.
enum Incoming {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "held for its drop")] crate::socket::SocketFile),
}

impl Incoming {
    fn new(listener: Listener) -> std::io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            Listener::Unix(listener, file) => Self::Unix(UnixListener::from_std(listener)?, file),
        })
    }
}

/// Takes connections until the end, then waits for those that are still answered.
async fn accept(
    incoming: Incoming,
    app: Arc<App>,
    token: Option<crate::Token>,
    mut ended: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(app.config.max_connections));
    let read_timeout = app.config.read_timeout;
    let service = TowerToHyperService::new(router(app, token));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { break };
        let taken = tokio::select! {
            taken = take(&incoming) => taken,
            _ = ended.changed() => break,
        };
        // Those that have ended are forgotten.
        while connections.try_join_next().is_some() {}
        let stream: Box<dyn Stream> = match taken {
            Ok(Some(stream)) => stream,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!("a connection could not be taken: {error}");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let (service, mut ended) = (service.clone(), ended.clone());
        connections.spawn(async move {
            let _place = place;
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(read_timeout)
                .max_headers(MAX_HEADERS)
                .max_buf_size(MAX_HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                _ = ended.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!("a connection ended: {error}");
            }
        });
    }
    drop(incoming);
    while connections.join_next().await.is_some() {}
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The next connection; none where somebody else knocked.
async fn take(incoming: &Incoming) -> std::io::Result<Option<Box<dyn Stream>>> {
    match incoming {
        Incoming::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Events are small and wanted at once.
            stream.set_nodelay(true)?;
            Ok(Some(Box::new(stream)))
        }
        Incoming::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            if !is_welcome(user) {
                tracing::warn!("user {user} knocked and was not let in");
                return Ok(None);
            }
            Ok(Some(Box::new(stream)))
        }
    }
}
