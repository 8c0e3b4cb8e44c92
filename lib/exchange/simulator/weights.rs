//! How simulated versions travel: whole, as what changed since a base, or through a memory that a reboot empties.

use std::cell::RefCell;
use std::rc::Rc;

use slime_config::paths;
use slime_record::{Base, NodeMemory, Publication};
use xxhash_rust::xxh3::xxh3_64;

use super::files::{SimFiles, World};
use crate::{Physical, Result, SealedStore, Store};

/// The way of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Whole, on disk.
    Disk,
    /// What changed, on disk; whole at least every so many versions.
    Delta(u64),
    /// Whole, in memory; what is needed after a reboot on disk, too.
    Memory,
}

/// What a trainer knows of the version that it published last, whose weights are the steps that it consumed.
#[derive(Debug, Default)]
pub(super) struct Sender {
    last: Option<(Base, usize)>,
    num_since_whole: u64,
}

impl Sender {
    /// Writes or offers `consumed` as the weights of a version.
    pub fn save(
        &mut self,
        store: &mut SealedStore<SimFiles>,
        world: &Rc<RefCell<World>>,
        way: Way,
        (place, is_whole): (Physical, bool),
        consumed: &[u64],
    ) -> Result<Publication> {
        let mut publication = Publication {
            version: place.version,
            epoch: place.epoch,
            transport: "simulated".into(),
            path: Some(paths::weights(place)),
            hash: hash(consumed),
            ..Publication::default()
        };
        match (way, self.last) {
            (Way::Delta(interval), Some((base, len))) if !is_whole && self.num_since_whole + 1 < interval => {
                store.seal(&changes(place), &json(&consumed[len..]))?;
                publication.base = Some(base);
                self.num_since_whole += 1;
            }
            (Way::Memory, _) => {
                world.borrow_mut().memory.insert(place, consumed.to_vec());
                let (host, boot, dir) = Default::default();
                publication.memory = Some(NodeMemory { host, boot, dir });
                if is_whole {
                    store.seal(&whole(place), &json(consumed))?;
                }
            }
            _ => {
                store.seal(&whole(place), &json(consumed))?;
                self.num_since_whole = 0;
            }
        }
        let Physical { version, epoch } = place;
        self.last = Some((Base { version, epoch, hash: publication.hash }, consumed.len()));
        Ok(publication)
    }
}

/// Takes the memory of versions that nobody may ask for; those of a later epoch are a successor's.
pub(super) fn forget(world: &mut World, epoch: u64, readable: &[Physical]) {
    world.memory.retain(|place, _| place.epoch > epoch || readable.contains(place));
}

/// Puts what lies in memory on disk.
pub(super) fn keep(
    store: &mut SealedStore<SimFiles>,
    world: &Rc<RefCell<World>>,
    needs: &[Physical],
) -> Result<()> {
    for place in needs {
        let consumed = world.borrow().memory.get(place).cloned();
        if let Some(consumed) = consumed {
            store.seal(&whole(*place), &json(&consumed))?;
        }
    }
    Ok(())
}

/// Whether a replica gets the weights of a version, and gets the right ones.
pub(super) fn take(
    store: &mut SealedStore<SimFiles>,
    world: &Rc<RefCell<World>>,
    place: Physical,
) -> Result<bool> {
    check_chain(&world.borrow(), place);
    let Some(bytes) = store.read(&paths::version(place))? else { return Ok(false) };
    let publication: Publication = serde_json::from_slice(&bytes).expect("a publication");
    let consumed = match (publication.base, world.borrow().memory.get(&place)) {
        (None, Some(consumed)) => Some(consumed.clone()),
        _ => None,
    };
    let consumed = match consumed {
        Some(consumed) => consumed,
        None => match chain(place, |path| store.read(path).map(|found| found.map(|bytes| bytes.to_vec())))? {
            Some(consumed) => consumed,
            None => return Ok(false),
        },
    };
    assert_eq!(hash(&consumed), publication.hash, "version {place} is not what was published");
    Ok(true)
}

/// A version that is published and told in changes has all that they build on.
fn check_chain(world: &World, place: Physical) {
    let truth = |path: &str| Ok(world.truth(path).map(|bytes| bytes.to_vec()));
    let Some(bytes) = world.truth(&paths::version(place)) else { return };
    let publication: Publication = serde_json::from_slice(&bytes).expect("a publication");
    if publication.memory.is_none() {
        let is_whole = chain(place, truth).is_ok_and(|consumed| consumed.is_some());
        assert!(is_whole, "the chain of version {place} is broken");
    }
}

/// The weights of a version on disk, from a whole one on.
fn chain(place: Physical, mut read: impl FnMut(&str) -> Result<Option<Vec<u8>>>) -> Result<Option<Vec<u64>>> {
    let (mut parts, mut place) = (Vec::new(), place);
    loop {
        let Some(publication) = read(&paths::version(place))? else { return Ok(None) };
        let publication: Publication = serde_json::from_slice(&publication).expect("a publication");
        let path = if publication.base.is_some() { changes(place) } else { whole(place) };
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let part: Vec<u64> = serde_json::from_slice(&bytes).expect("numbers");
        parts.push(part);
        match publication.base {
            Some(base) => place = Physical { version: base.version, epoch: base.epoch },
            None => return Ok(Some(parts.into_iter().rev().flatten().collect())),
        }
    }
}

fn whole(place: Physical) -> String {
    format!("{}/model", paths::weights(place))
}

fn changes(place: Physical) -> String {
    format!("{}/changes", paths::weights(place))
}

fn json(consumed: &[u64]) -> Vec<u8> {
    serde_json::to_vec(consumed).expect("numbers")
}

fn hash(consumed: &[u64]) -> u64 {
    xxh3_64(&json(consumed))
}
