//! A shared filesystem that misbehaves within its rights: late names, stale handles, renames that say failed when
//! done, a full disk, and processes that die or stop inside a call.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::rc::Rc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::paths::{self, Physical};

use crate::{Bytes, Error, Fill, RawFiles, Result};

/// Longest time a name or its absence may be remembered wrongly by a reader.
pub(super) const VISIBILITY_MS: u64 = 40;

#[derive(Clone)]
struct Inode {
    bytes: Bytes,
    num_links: u64,
}

#[derive(Clone)]
struct Entry {
    inode: usize,
    created_ms: u64,
    writer: u32,
}

/// Chances per call, in 1/1024.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chances {
    pub stale: u32,
    pub lying: u32,
    pub full: u32,
    pub kill: u32,
    pub freeze: u32,
    /// A segment or a column is written with bytes missing, or computed for other tokens.
    pub broken: u32,
    pub delay_ms: u64,
}

/// The disk and the clock all processes share.
pub(super) struct World {
    pub now_ms: u64,
    pub chances: Chances,
    /// A commit replaces instead of losing: the mistake the link count prevents.
    pub replaces_commits: bool,
    pub rng: ChaCha8Rng,
    inodes: Vec<Inode>,
    names: BTreeMap<Rc<str>, Entry>,
    mistaken: BTreeSet<String>,
    delays: BTreeMap<(u32, String), u64>,
    /// Weights in the memory of the node, which a reboot empties.
    pub memory: BTreeMap<Physical, Vec<u64>>,
    /// Raw calls of each process: what a metadata server has to answer.
    pub calls: BTreeMap<u32, u64>,
}

impl World {
    pub fn new(seed: u64, chances: Chances) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            now_ms: 0,
            chances,
            replaces_commits: false,
            rng: ChaCha8Rng::seed_from_u64(seed),
            inodes: Vec::new(),
            names: BTreeMap::new(),
            mistaken: BTreeSet::new(),
            delays: BTreeMap::new(),
            memory: BTreeMap::new(),
            calls: BTreeMap::new(),
        }))
    }

    pub fn happens(&mut self, chance: u32) -> bool {
        chance > 0 && self.rng.random_range(0..1024) < chance
    }

    /// Whether something goes wrong with `what`, which it does at most once.
    pub fn is_first_mistake(&mut self, what: &str) -> bool {
        self.happens(self.chances.broken) && self.mistaken.insert(what.to_owned())
    }

    /// When the oldest of the numbered names in `dir` beyond `mine` was created.
    pub fn superseded_ms(&self, dir: &str, mine: u64) -> Option<u64> {
        let newer = self.paths(&format!("{dir}/")).into_iter().filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            paths::parse_number(name).is_some_and(|number| number > mine)
        });
        newer.map(|path| self.names[&path].created_ms).min()
    }

    /// A file of somebody outside the protocol.
    pub fn write_foreign(&mut self, path: &str) {
        self.inodes.push(Inode { bytes: Vec::new().into(), num_links: 1 });
        let inode = self.inodes.len() - 1;
        self.put(u32::MAX, path, inode);
    }

    /// Removes it again.
    pub fn remove_foreign(&mut self, path: &str) {
        self.names.remove(path);
    }

    /// When a name came to be.
    pub fn created_ms(&self, path: &str) -> Option<u64> {
        self.names.get(path).map(|entry| entry.created_ms)
    }

    /// What is really on disk.
    pub fn truth(&self, path: &str) -> Option<Bytes> {
        self.names.get(path).map(|entry| self.inodes[entry.inode].bytes.clone())
    }

    pub fn paths(&self, prefix: &str) -> Vec<Rc<str>> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let under = self.names.range::<str, _>(from).take_while(|(path, _)| path.starts_with(prefix));
        under.map(|(path, _)| path.clone()).collect()
    }

    /// Whether `reader` can see a name: the delay is drawn once for each reader and name.
    fn sees(&mut self, reader: u32, path: &str) -> bool {
        let Some(entry) = self.names.get(path) else { return false };
        let (created_ms, writer) = (entry.created_ms, entry.writer);
        if writer == reader || self.chances.delay_ms == 0 || self.now_ms >= created_ms + self.chances.delay_ms
        {
            return true;
        }
        let (rng, max) = (&mut self.rng, self.chances.delay_ms);
        let delay = *self
            .delays
            .entry((reader, path.to_owned()))
            .or_insert_with(|| if rng.random_bool(0.5) { 0 } else { rng.random_range(0..max) });
        self.now_ms >= created_ms + delay
    }

    fn put(&mut self, writer: u32, path: &str, inode: usize) {
        let created_ms = self.now_ms;
        if let Some(old) = self.names.insert(path.into(), Entry { inode, created_ms, writer }) {
            self.inodes[old.inode].num_links -= 1;
            // A replaced name was there before: readers never find it absent.
            if let Some(entry) = self.names.get_mut(path) {
                entry.created_ms = old.created_ms;
            }
        }
    }
}

/// What a call gave, so that a frozen process can be led back to where it stopped.
#[derive(Clone)]
enum Outcome {
    Done(Rc<dyn std::any::Any>),
    Failed(Failure),
}

#[derive(Clone, Copy)]
enum Failure {
    Stale,
    Lying,
    Full,
    /// The folder was removed under the writer.
    Pruned,
}

/// One process's raw calls.
#[derive(Clone)]
pub(super) struct SimFiles {
    world: Rc<RefCell<World>>,
    process: u32,
    log: Rc<RefCell<Log>>,
}

#[derive(Default)]
struct Log {
    outcomes: Vec<Outcome>,
    next: usize,
    stop: Option<Stop>,
    is_immune: bool,
    has_changed: bool,
}

/// Why a process stopped inside a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Killed,
    Frozen,
}

impl SimFiles {
    pub fn new(world: &Rc<RefCell<World>>, process: u32) -> Self {
        Self { world: world.clone(), process, log: Rc::default() }
    }

    /// A new poll begins: what was logged before is history.
    pub fn begin(&self) {
        *self.log.borrow_mut() = Log::default();
    }

    /// The frozen poll is run again: logged calls give what they gave, the next one is live.
    pub fn thaw(&self) {
        let mut log = self.log.borrow_mut();
        (log.next, log.stop, log.is_immune) = (0, None, true);
    }

    /// Whether the poll has changed anything so far.
    pub fn has_changed(&self) -> bool {
        self.log.borrow().has_changed
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.log.borrow().stop
    }

    fn fail(failure: Failure, path: &str) -> Error {
        let kind = match failure {
            Failure::Stale => io::ErrorKind::StaleNetworkFileHandle,
            Failure::Lying => io::ErrorKind::TimedOut,
            Failure::Full => io::ErrorKind::StorageFull,
            Failure::Pruned => io::ErrorKind::NotFound,
        };
        Error::io("simulate", path, kind.into())
    }

    fn call<T: Clone + 'static>(
        &self,
        path: &str,
        is_change: bool,
        live: impl FnOnce(&mut World) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let replayed = {
            let mut log = self.log.borrow_mut();
            let outcome = log.outcomes.get(log.next).cloned();
            log.next += usize::from(outcome.is_some());
            outcome
        };
        match replayed {
            Some(Outcome::Done(value)) => {
                let value = value.downcast_ref::<T>().expect("a replayed poll makes the same calls");
                return Ok(value.clone());
            }
            Some(Outcome::Failed(failure)) => return Err(Self::fail(failure, path)),
            None => {}
        }
        let mut log = self.log.borrow_mut();
        let mut world = self.world.borrow_mut();
        if log.stop.is_some() {
            return Err(Self::fail(Failure::Full, path));
        }
        *world.calls.entry(self.process).or_default() += 1;
        let chances = world.chances;
        if is_change && !log.is_immune && world.happens(chances.freeze) {
            log.stop = Some(Stop::Frozen);
            return Err(Self::fail(Failure::Full, path));
        }
        if is_change && world.happens(chances.kill) {
            if world.rng.random_bool(0.5) {
                let _ = live(&mut world);
            }
            log.stop = Some(Stop::Killed);
            return Err(Self::fail(Failure::Full, path));
        }
        log.is_immune = false;
        log.has_changed |= is_change;
        let outcome = if world.happens(chances.stale) { Err(Failure::Stale) } else { live(&mut world) };
        let logged = match &outcome {
            Ok(value) => Outcome::Done(Rc::new(value.clone())),
            Err(failure) => Outcome::Failed(*failure),
        };
        log.outcomes.push(logged);
        log.next = log.outcomes.len();
        outcome.map_err(|failure| Self::fail(failure, path))
    }
}

impl RawFiles for SimFiles {
    fn now_ms(&self) -> u64 {
        // Read like a file: a replayed poll sees the times it saw, then the clock jumps.
        let mut log = self.log.borrow_mut();
        let outcome = log.outcomes.get(log.next).cloned();
        log.next += 1;
        if let Some(Outcome::Done(value)) = outcome {
            return *value.downcast_ref::<u64>().expect("a replayed poll makes the same calls");
        }
        let now_ms = self.world.borrow().now_ms;
        log.outcomes.push(Outcome::Done(Rc::new(now_ms)));
        log.next = log.outcomes.len();
        now_ms
    }

    fn pause(&mut self, _ms: u64) {}

    fn write_tmp(&mut self, path: &str, fill: Fill<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        fill(&mut bytes)?;
        let process = self.process;
        self.call(path, true, |world| {
            if world.happens(world.chances.full) {
                return Err(Failure::Full);
            }
            world.inodes.push(Inode { bytes: bytes.into(), num_links: 1 });
            let inode = world.inodes.len() - 1;
            world.put(process, path, inode);
            Ok(())
        })
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let process = self.process;
        self.call(to, true, |world| {
            let Some(entry) = world.names.remove(from) else { return Err(Failure::Pruned) };
            let is_data =
                ["/replica-", "/parts-"].iter().any(|name| to.contains(name)) || to.starts_with("column/");
            if is_data && !world.names.contains_key(to) && world.is_first_mistake(to) {
                let bytes = world.inodes[entry.inode].bytes.to_vec();
                world.inodes[entry.inode].bytes = bytes[..bytes.len() / 2].to_vec().into();
            }
            world.put(process, to, entry.inode);
            if world.happens(world.chances.lying) { Err(Failure::Lying) } else { Ok(()) }
        })
    }

    fn link(&mut self, from: &str, to: &str) -> Result<bool> {
        let process = self.process;
        self.call(to, true, |world| {
            let Some(inode) = world.names.get(from).map(|entry| entry.inode) else {
                return Err(Failure::Pruned);
            };
            let is_taken = world.names.contains_key(to) && !world.replaces_commits;
            if !is_taken {
                world.put(process, to, inode);
                world.inodes[inode].num_links += 1;
            }
            let is_lying = world.happens(world.chances.lying);
            // The repeated request of a network filesystem finds its own first try.
            if is_lying && !is_taken { Ok(false) } else { Ok(!is_taken) }
        })
    }

    fn num_links(&mut self, path: &str) -> Result<Option<u64>> {
        self.call(path, false, |world| {
            Ok(world.names.get(path).map(|entry| world.inodes[entry.inode].num_links))
        })
    }

    fn sync_dir(&mut self, dir: &str) -> Result<()> {
        self.call(dir, false, |_| Ok(()))
    }

    fn read(&mut self, path: &str) -> Result<Option<Bytes>> {
        let process = self.process;
        self.call(path, false, |world| Ok(if world.sees(process, path) { world.truth(path) } else { None }))
    }

    fn exists(&mut self, path: &str) -> Result<bool> {
        let process = self.process;
        self.call(path, false, |world| Ok(world.sees(process, path)))
    }

    fn list(&mut self, dir: &str) -> Result<Vec<String>> {
        let process = self.process;
        self.call(dir, false, |world| {
            let prefix = format!("{dir}/");
            let mut children = BTreeSet::new();
            for path in world.paths(&prefix) {
                let name = path[prefix.len()..].split('/').next().unwrap_or_default();
                if !children.contains(name) && world.sees(process, &path) {
                    children.insert(name.to_owned());
                }
            }
            Ok(children.into_iter().collect())
        })
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        self.call(path, true, |world| {
            let prefix = format!("{path}/");
            let mut gone = world.paths(&prefix);
            gone.extend(world.names.contains_key(path).then(|| path.into()));
            for path in gone {
                if let Some(entry) = world.names.remove(&path) {
                    world.inodes[entry.inode].num_links -= 1;
                }
            }
            Ok(())
        })
    }
}
