//! The HTTP side's way to the engine: jobs in, events out, and what is left behind is taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use slime_engine::SamplingParams;
use tokio::sync::{mpsc, oneshot};

use crate::job::{Command, Event, Job};
use crate::{ApiError, ApiResult, Status};

/// What a client wants sampled.
#[derive(Debug)]
pub struct Wanted {
    /// The client's name of it.
    pub rid: String,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// How to sample.
    pub params: SamplingParams,
    /// Whether log-probs of the prompt are wanted, and how many of the most likely tokens with them.
    pub prompt_log_probs: Option<usize>,
    /// Whether tokens are told one by one.
    pub wants_tokens: bool,
}

/// The engine as the routes see it.
#[derive(Debug, Clone)]
pub struct Handle {
    orders: Sender<Command>,
    next_id: Arc<AtomicU64>,
    /// What both sides see.
    pub status: Arc<Status>,
    max_queued: usize,
}

impl Handle {
    /// The other end of a driver's orders; at most `max_queued` samples wait or run.
    pub fn new(orders: Sender<Command>, status: Arc<Status>, max_queued: usize) -> Self {
        Self { orders, next_id: Arc::default(), status, max_queued }
    }

    /// Gives jobs to the engine, all or none of them.
    ///
    /// # Errors
    /// The server drains, the queue is full, or the engine has ended.
    pub fn submit(&self, wanted: Vec<Wanted>) -> ApiResult<Vec<Running>> {
        let status = &self.status;
        if status.is_draining.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("the server is about to end and takes no new requests"));
        }
        let num = wanted.iter().map(|wanted| wanted.params.n as usize).sum::<usize>();
        let before = status.num_unfinished.fetch_add(num, Ordering::AcqRel);
        let room = Room { status: status.clone(), num: AtomicUsize::new(num) };
        if before + num > self.max_queued {
            let most = self.max_queued;
            return Err(ApiError::unavailable(format!(
                "the request queue is full: {before} samples wait or run, {num} more were asked for, {most} are allowed"
            )));
        }
        wanted.into_iter().map(|wanted| self.start(wanted, &room)).collect()
    }

    fn start(&self, wanted: Wanted, room: &Room) -> ApiResult<Running> {
        let Wanted { rid, tokens, params, prompt_log_probs, wants_tokens } = wanted;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (events, receiver) = mpsc::unbounded_channel();
        let (num_samples, prompt_len) = (params.n as usize, tokens.len());
        self.status.num_prompt_tokens.fetch_add(prompt_len as u64, Ordering::Relaxed);
        let job = Job { id, rid: rid.clone(), tokens, params, prompt_log_probs, wants_tokens, events };
        self.order(Command::Submit(Box::new(job)))?;
        let room = room.part(num_samples);
        let (orders, arrived) = (self.orders.clone(), Instant::now());
        Ok(Running {
            id,
            rid,
            prompt_len,
            num_samples,
            arrived,
            events: receiver,
            orders,
            is_over: false,
            room,
        })
    }

    /// Gives an order.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn order(&self, order: Command) -> ApiResult<()> {
        self.orders.send(order).map_err(|_| ApiError::internal("the engine has ended"))
    }

    /// Gives an order and waits for the answer.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn ask<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Command) -> ApiResult<T> {
        let (sender, receiver) = oneshot::channel();
        self.order(order(sender))?;
        receiver.await.map_err(|_| ApiError::internal("the engine has ended"))
    }
}

/// Places in the queue, given back on drop.
#[derive(Debug)]
struct Room {
    status: Arc<Status>,
    num: AtomicUsize,
}

impl Room {
    /// `num` of these places as places of their own.
    fn part(&self, num: usize) -> Self {
        self.num.fetch_sub(num, Ordering::Relaxed);
        Self { status: self.status.clone(), num: AtomicUsize::new(num) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.status.num_unfinished.fetch_sub(*self.num.get_mut(), Ordering::AcqRel);
    }
}

/// A job on its way; when it is dropped before its end the engine forgets it.
#[derive(Debug)]
pub struct Running {
    id: u64,
    /// The client's name of it.
    pub rid: String,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Samples that are drawn.
    pub num_samples: usize,
    /// When it came.
    pub arrived: Instant,
    events: mpsc::UnboundedReceiver<Event>,
    orders: Sender<Command>,
    is_over: bool,
    #[expect(dead_code, reason = "held for its drop")]
    room: Room,
}

impl Running {
    /// What happens next.
    ///
    /// # Errors
    /// The job has failed, or the engine has ended.
    pub async fn next(&mut self) -> ApiResult<Event> {
        let event = self.events.recv().await;
        self.seen(event)
    }

    /// What has already happened, if anything.
    ///
    /// # Errors
    /// The job has failed, or the engine has ended.
    pub fn try_next(&mut self) -> ApiResult<Option<Event>> {
        match self.events.try_recv() {
            Ok(event) => self.seen(Some(event)).map(Some),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => self.seen(None).map(Some),
        }
    }

    fn seen(&mut self, event: Option<Event>) -> ApiResult<Event> {
        match event {
            Some(Event::Failed(error)) => {
                self.is_over = true;
                Err(error)
            }
            Some(event) => Ok(event),
            None => {
                self.is_over = true;
                Err(ApiError::internal("the engine has ended"))
            }
        }
    }

    /// All samples have ended: there is nothing to take back.
    pub fn finish(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            // An engine that has ended has forgotten it too.
            let _ = self.orders.send(Command::Cancel(self.id));
        }
    }
}
