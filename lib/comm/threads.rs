//! Ranks as threads of one process: the reference on which layouts run in tests without a launcher.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::collectives::peers;
use crate::communicator::COLLECTIVE;
use crate::{Collectives, Communicator, Error, Incoming, Outgoing, Result};

/// What waits for one rank: messages by (group, sender in the world, tag), and the ranks that have ended.
#[derive(Default)]
struct Inbox {
    messages: HashMap<(u32, usize, u16), VecDeque<Vec<u8>>>,
    ended: HashMap<usize, Option<u8>>,
}

#[derive(Default)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

struct World {
    mailboxes: Vec<Mailbox>,
    /// Names of groups made by `split`: (parent, number of the split, colour) to identity.
    groups: Mutex<HashMap<(u32, u32, u32), u32>>,
}

impl World {
    /// Tells all ranks that `rank` sends nothing any more; `code` when it aborted.
    fn end(&self, rank: usize, code: Option<u8>) {
        for mailbox in &self.mailboxes {
            lock(&mailbox.inbox).ended.entry(rank).or_insert(code);
            mailbox.changed.notify_all();
        }
    }

    /// The next message; an abort of any rank, or the end of the sender, wakes the wait with an error.
    fn receive(&self, me: usize, group: u32, from: usize, tag: u16) -> Result<Vec<u8>> {
        let mailbox = &self.mailboxes[me];
        let mut inbox = lock(&mailbox.inbox);
        loop {
            if let Some(message) = inbox.messages.get_mut(&(group, from, tag)).and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if let Some((&rank, &Some(code))) = inbox.ended.iter().find(|(_, code)| code.is_some()) {
                return Err(Error::Aborted { rank, code });
            }
            if inbox.ended.contains_key(&from) {
                return Err(Error::PeerGone { rank: from, waiting: me });
            }
            inbox = mailbox.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One rank of a world of threads.
pub struct Threads {
    world: Arc<World>,
    group: u32,
    /// World ranks of the group's members.
    members: Vec<usize>,
    rank: usize,
    splits: AtomicU32,
}

/// Carries an abort's code through the unwinding of the rank's thread.
struct Abort(u8);

impl Threads {
    /// The place in the world of a rank of this group.
    fn member(&self, rank: usize) -> Result<usize> {
        let size = self.members.len();
        self.members.get(rank).copied().ok_or(Error::Rank { call: "exchange", rank, size })
    }

    /// Runs `body` on `size` threads and returns their results in rank order. A rank that aborts or panics wakes
    /// its waiting peers with an error, and so does one that returns while a peer still waits for it; an abort,
    /// else the panic of the lowest rank, is the error of the call.
    pub fn spawn<R: Send>(size: usize, body: impl Fn(Threads) -> R + Sync) -> Result<Vec<R>> {
        let mailboxes = (0..size).map(|_| Mailbox::default()).collect();
        let world = Arc::new(World { mailboxes, groups: Mutex::default() });
        std::thread::scope(|scope| {
            let mut handles = Vec::with_capacity(size);
            for rank in 0..size {
                let (world, body) = (&world, &body);
                let members = (0..size).collect();
                let comm =
                    Threads { world: world.clone(), group: 0, members, rank, splits: AtomicU32::new(0) };
                let run = move || {
                    let guard = EndOnDrop { world, rank };
                    let result = body(comm);
                    drop(guard);
                    result
                };
                let named = std::thread::Builder::new().name(format!("rank {rank}"));
                match named.spawn_scoped(scope, run) {
                    Ok(handle) => handles.push(handle),
                    Err(source) => {
                        // The ranks already started must not wait for those that never will be.
                        (rank..size).for_each(|missing| world.end(missing, Some(71)));
                        return Err(Error::Thread { rank, source });
                    }
                }
            }
            let joined: Vec<_> = handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            let (mut results, mut failed) = (Vec::with_capacity(size), None);
            for (rank, result) in joined.into_iter().enumerate() {
                match result.map_err(|cause| failure(rank, &*cause)) {
                    Ok(value) => results.push(value),
                    // An abort says more than the panics of peers that it woke.
                    Err(e @ Error::Aborted { .. }) if !matches!(failed, Some(Error::Aborted { .. })) => {
                        failed = Some(e);
                    }
                    Err(e) => failed = failed.or(Some(e)),
                }
            }
            failed.map_or(Ok(results), Err)
        })
    }
}

/// However a rank's thread ends, its peers learn it.
struct EndOnDrop<'a> {
    world: &'a World,
    rank: usize,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.world.end(self.rank, std::thread::panicking().then_some(70));
    }
}

fn failure(rank: usize, cause: &(dyn Any + Send)) -> Error {
    if let Some(Abort(code)) = cause.downcast_ref() {
        return Error::Aborted { rank, code: *code };
    }
    let text = cause.downcast_ref::<&str>().map(ToString::to_string);
    let message =
        text.or_else(|| cause.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
    Error::Panicked { rank, message }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn backend(&self) -> &'static str {
        "threads"
    }

    fn exchange(&self, tag: u16, out: &[Outgoing<'_>], into: &mut [Incoming<'_>]) -> Result<()> {
        // A message waits in the mailbox of its receiver, so none has to be taken before the next is sent.
        out.iter().try_for_each(|message| self.post(tag, message))?;
        let me = self.members[self.rank];
        for buffer in into {
            let message = self.world.receive(me, self.group, self.member(buffer.from)?, tag)?;
            if message.len() != buffer.data.len() {
                let (from, expected, got) = (buffer.from, buffer.data.len(), message.len());
                return Err(Error::Message { from, expected, got });
            }
            buffer.data.copy_from_slice(&message);
        }
        Ok(())
    }

    fn post(&self, tag: u16, message: &Outgoing<'_>) -> Result<()> {
        let mailbox = &self.world.mailboxes[self.member(message.to)?];
        let key = (self.group, self.members[self.rank], tag);
        lock(&mailbox.inbox).messages.entry(key).or_default().push_back(message.data.to_vec());
        mailbox.changed.notify_all();
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        let out: Vec<_> = peers(self).map(|to| Outgoing { to, data: &[] }).collect();
        let mut into: Vec<_> = peers(self).map(|from| Incoming { from, data: &mut [] }).collect();
        self.exchange(COLLECTIVE, &out, &mut into)
    }

    fn split(&self, colour: u32, key: u32) -> Result<Arc<dyn Communicator>> {
        let mut all = vec![0u64; self.size()];
        self.all_gather(&[u64::from(colour) << 32 | u64::from(key)], &mut all)?;
        let mut chosen: Vec<(u32, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, v)| (*v >> 32) as u32 == colour)
            .map(|(r, v)| (*v as u32, r))
            .collect();
        chosen.sort_unstable();
        let rank =
            chosen.iter().position(|&(_, r)| r == self.rank).expect("the own colour is among the gathered");
        let members = chosen.iter().map(|&(_, r)| self.members[r]).collect();
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        let mut groups = lock(&self.world.groups);
        let next = groups.len() as u32 + 1;
        let group = *groups.entry((self.group, number, colour)).or_insert(next);
        Ok(Arc::new(Self { world: self.world.clone(), group, members, rank, splits: AtomicU32::new(0) }))
    }

    fn abort(&self, code: u8) -> ! {
        self.world.end(self.members[self.rank], Some(code));
        // Quiet: the reason was logged by the caller; `spawn` turns the payload into an error.
        std::panic::resume_unwind(Box::new(Abort(code)))
    }

    fn finish(&self) -> Result<()> {
        self.barrier()
    }
}
