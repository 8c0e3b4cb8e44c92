//! The end of a measurement that hangs: when its time is nearly up every rank that lives says so to rank 0, which
//! names the others and ends the world.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use slime_cli::{Failure, exit, report};
use slime_comm::{Collectives, Communicator, Placement};

use super::check::Check;
use super::line::{Reporter, text, write};

/// Tag of the answers; the measurements use others.
const TAG: u8 = 9;
/// Time the answers get before the deadline, or a quarter of it where that is less.
const ANSWERS: Duration = Duration::from_secs(3);
/// After the deadline, how long the other ranks leave the word to rank 0, and how long the launcher may take to end
/// the world.
const RANK_0_SPEAKS: Duration = Duration::from_secs(2);
const LAUNCHER_ENDS: Duration = Duration::from_secs(3);

/// What may be done about the world.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// MPI is being started: it carries nothing yet.
    Starting,
    Measuring,
    /// The roll is called; the measurement may not end any more.
    Called,
    /// MPI is being left: it carries nothing any more.
    Ending,
    Ended,
}

struct Inner {
    state: State,
    phase: &'static str,
    world: Option<Arc<dyn Communicator>>,
    /// Node and host of every rank, once they are known.
    places: Vec<(String, String)>,
    answered: Vec<bool>,
}

struct Shared {
    node: String,
    rank: usize,
    size: usize,
    deadline: Duration,
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// The watch over one rank; it goes on until [`RollCall::ended`].
pub struct RollCall {
    shared: Arc<Shared>,
}

impl RollCall {
    /// Starts the clock.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(node: &str, placement: &Placement, deadline: Duration) -> Result<Self, Failure> {
        let answered = vec![false; placement.size];
        let inner = Inner {
            state: State::Starting,
            phase: "the start of MPI",
            world: None,
            places: Vec::new(),
            answered,
        };
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            rank: placement.rank,
            size: placement.size,
            deadline,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        });
        let watched = Arc::clone(&shared);
        let thread = Builder::new().name("roll-call".to_owned()).spawn(move || watched.watch());
        thread.map_err(|error| Failure::new(exit::OS, format!("cannot start a thread: {error}")))?;
        Ok(Self { shared })
    }

    /// The world is up.
    pub fn joined(&self, world: &Arc<dyn Communicator>) {
        let mut inner = self.shared.lock();
        inner.world = Some(Arc::clone(world));
        inner.state = State::Measuring;
    }

    /// What the rank does now.
    pub fn enter(&self, phase: &'static str) {
        self.shared.lock().phase = phase;
        tracing::debug!("{phase}");
    }

    /// Node and host of every rank.
    pub fn learned(&self, places: Vec<(String, String)>) {
        self.shared.lock().places = places;
    }

    /// MPI is left from now on; does not return once the roll is called.
    pub fn ending(&self) {
        let mut inner = self.shared.lock();
        while inner.state == State::Called {
            inner = self.shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.state = State::Ending;
        inner.phase = "the end of MPI";
    }

    /// All is over.
    pub fn ended(&self) {
        self.shared.lock().state = State::Ended;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(self: Arc<Self>) {
        let started = Instant::now();
        let answers = ANSWERS.min(self.deadline / 4);
        if self.waited(started + self.deadline.saturating_sub(answers)) {
            return;
        }
        let world = self.call();
        if let Some(world) = &world {
            self.answer_or_listen(world);
        }
        let silence = if self.rank == 0 { Duration::ZERO } else { RANK_0_SPEAKS };
        if self.waited(started + self.deadline + silence) {
            return;
        }
        self.end(world);
    }

    /// True when the measurement ended before `until`.
    fn waited(&self, until: Instant) -> bool {
        let mut inner = self.lock();
        while inner.state != State::Ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Calls the roll; the world, where it can carry the answers.
    fn call(&self) -> Option<Arc<dyn Communicator>> {
        let mut inner = self.lock();
        let world = inner.world.clone().filter(|_| inner.state == State::Measuring)?;
        inner.state = State::Called;
        Some(world)
    }

    /// A rank answers; rank 0 listens to each on a thread of its own, since a silent one would hold up the others.
    fn answer_or_listen(self: &Arc<Self>, world: &Arc<dyn Communicator>) {
        let peers = if self.rank == 0 { 1..self.size } else { 0..1 };
        for peer in peers {
            let (shared, world) = (Arc::clone(self), Arc::clone(world));
            let answer = move || {
                if shared.rank == 0 {
                    let heard = world.recv(&mut [0_u8], peer, TAG).is_ok();
                    shared.lock().answered[peer] = heard;
                } else {
                    // A failed answer is what rank 0 will say.
                    let _ = world.send(&[1_u8], peer, TAG);
                }
            };
            // Without a thread the rank counts as silent.
            let _ = Builder::new().stack_size(256 << 10).spawn(answer);
        }
    }

    /// Says what is known, and ends the world with code 69.
    fn end(&self, world: Option<Arc<dyn Communicator>>) -> ! {
        let (failure, silent) = self.diagnosis(world.is_some());
        // The verdict can then exclude them; a broken stdout changes nothing about the end.
        let _ = write(&silent);
        report("slime-sync", &failure);
        if let Some(world) = world {
            // The abort may hang as well.
            let _ = Builder::new().spawn(move || world.abort(exit::UNAVAILABLE));
            sleep(LAUNCHER_ENDS);
        }
        // The main thread hangs in MPI and cannot return.
        std::process::exit(i32::from(exit::UNAVAILABLE))
    }

    /// The failure of this rank, and the lines about silent ranks whose nodes are known.
    fn diagnosis(&self, was_called: bool) -> (Failure, String) {
        let inner = self.lock();
        let (rank, size, phase) = (self.rank, self.size, inner.phase);
        let told = |rank: usize| match inner.places.get(rank) {
            Some((node, _)) => format!("rank {rank} on {node}"),
            None => format!("rank {rank}"),
        };
        let start = format!("{phase} did not end in {:.0} s", self.deadline.as_secs_f64());
        let fail = |what: String, hint: &str| {
            Failure::new(exit::UNAVAILABLE, format!("{start}: {what}")).with_hint(hint)
        };
        if !was_called {
            let what = format!("rank {rank} of {size} on {} waits for the others", self.node);
            return (
                fail(what, "the node of the rank that does not say this is the one to look at"),
                String::new(),
            );
        }
        if rank != 0 {
            let what = format!("{} of {size} is alive, {} does not end it", told(rank), told(0));
            return (fail(what, "leave the node of rank 0 out (sbatch --exclude)"), String::new());
        }
        let silent: Vec<usize> = (1..size).filter(|&rank| !inner.answered[rank]).collect();
        if silent.is_empty() {
            let what = format!("all {size} ranks answer, so the network is slow or a message was lost");
            return (fail(what, "raise --deadline-s, or look at the network"), String::new());
        }
        let names: Vec<String> = silent.iter().map(|&rank| told(rank)).collect();
        let lines = silent.iter().filter_map(|&rank| {
            let (node, host) = inner.places.get(rank)?;
            let got = format!("rank {rank} was silent in {phase}");
            let check = Check::bad("link_answer", got, "an answer", "look at the node and its network");
            let reporter = Reporter::Link {
                rank,
                size,
                unix_s: None,
                left_bytes_per_s: None,
                right_bytes_per_s: None,
                all_reduce_bytes_per_s: None,
            };
            text(node, host, &reporter, &[check]).ok()
        });
        let what = format!("no answer from {}", names.join(", "));
        (fail(what, "leave these nodes out (sbatch --exclude), or look at their network"), lines.collect())
    }
}
