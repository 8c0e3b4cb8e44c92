//! How long a way takes on this machine, and what the same bytes cost without it: plain writing and reading, and memcpy.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slime_config::{RunDir, Sync, paths};
use slime_exchange::{FsStore, Physical, Store};
use slime_weights::{TensorSpec, WeightDir};

use crate::{CHUNK_BYTES, Error, Result, Version, Ways};

/// Versions before those that are timed: the first one is whole, and memory is new for two.
const WARM_UP: u64 = 2;

/// One version on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// From the trainer's tensors to a version that can be published.
    pub send: Duration,
    /// From its publication to a weight directory whose every byte was verified.
    pub receive: Duration,
    /// From that directory to an engine's tensors.
    pub load: Duration,
    /// Bytes of the files that the sender wrote and the receiver read.
    pub num_bytes: u64,
}

impl Timed {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.send + self.receive + self.load
    }
}

/// Sends versions of `weights`, which `update` changes before each, the way that `config` names, through the run directory
/// `root`, and takes each as an engine that follows; the first ones, which are whole or in new memory, are left out.
///
/// # Errors
/// Those of the way; what an engine gets is not what was sent.
pub fn measure(
    root: &Path,
    config: &Sync,
    specs: &[TensorSpec],
    weights: &mut [Vec<u8>],
    repeats: u64,
    update: &mut dyn FnMut(&mut [Vec<u8>]),
) -> Result<Vec<Timed>> {
    let run_dir = RunDir::new(root);
    let (mut store, mut sender) = (FsStore::open(root)?, Ways::new(&run_dir, config));
    let mut receiver = Ways::new(&run_dir, config);
    let mut engine: Vec<Vec<u8>> = weights.iter().map(|bytes| vec![0; bytes.len()]).collect();
    let mut timed = Vec::new();
    for number in 0..WARM_UP + repeats {
        if number > 0 {
            update(weights);
        }
        let place = Physical { version: number, epoch: 1 };
        let version = Version {
            place,
            is_whole: false,
            readable: number
                .checked_sub(1)
                .map(|version| Physical { version, epoch: 1 })
                .into_iter()
                .collect(),
            tensors: specs.to_vec(),
            side_files: Vec::new(),
        };
        let began = Instant::now();
        let mut outgoing = sender.sender().begin(version)?;
        for (spec, bytes) in specs.iter().zip(&*weights) {
            outgoing.write(&spec.name, bytes)?;
        }
        let publication = outgoing.finish()?;
        let send = began.elapsed();
        let text = serde_json::to_vec(&publication).map_err(|error| Error::Publication {
            publication: paths::version(place),
            problem: error.to_string(),
        })?;
        store.commit(&paths::version(place), &text)?;

        let began = Instant::now();
        let gone = || Error::Gap { version: place, base: place };
        let dir = receiver.receive(&mut store, place)?.ok_or_else(gone)?.dir;
        let receive = began.elapsed();
        let began = Instant::now();
        let opened = WeightDir::open_stored(&dir)?;
        for (spec, bytes) in specs.iter().zip(&mut engine) {
            bytes.copy_from_slice(&opened.tensor(&spec.name)?.bytes);
        }
        let load = began.elapsed();
        if engine != *weights {
            return Err(Error::Identity { path: dir, expected: publication.hash, got: 0 });
        }
        let sent = publication.memory.map_or_else(|| run_dir.join(paths::weights(place)), |m| m.dir.into());
        let num_bytes = num_bytes_of(&sent)?;
        if number >= WARM_UP {
            timed.push(Timed { send, receive, load, num_bytes });
        }
    }
    sender.end(1)?;
    Ok(timed)
}

fn num_bytes_of(dir: &Path) -> Result<u64> {
    crate::shm::room::num_bytes_of(dir)
}

/// How long it takes to write these bytes into a new file of `dir` and to sync it, and then to read them.
///
/// # Errors
/// The disk refuses.
pub fn plain_write_and_read(dir: &Path, weights: &[Vec<u8>]) -> Result<(Duration, Duration)> {
    let path: PathBuf = slime_cli::temporary_beside(&dir.join("plain"));
    let refused = |source| Error::Write { path: path.clone(), source };
    let began = Instant::now();
    let mut file = File::create(&path).map_err(refused)?;
    weights.iter().try_for_each(|bytes| file.write_all(bytes)).map_err(refused)?;
    file.sync_all().map_err(refused)?;
    let write = began.elapsed();
    let mut buffer = vec![0; CHUNK_BYTES];
    let began = Instant::now();
    let mut file = File::open(&path).map_err(refused)?;
    while file.read(&mut buffer).map_err(refused)? > 0 {
        black_box(&buffer);
    }
    let read = began.elapsed();
    fs::remove_file(&path).map_err(refused)?;
    Ok((write, read))
}

/// How long it takes to copy these bytes into memory that the process holds, and into memory that it gets for it.
pub fn plain_copies(weights: &[Vec<u8>], held: &mut [Vec<u8>]) -> (Duration, Duration) {
    let began = Instant::now();
    for (from, to) in weights.iter().zip(held) {
        black_box(to).copy_from_slice(from);
    }
    let into_held = began.elapsed();
    let began = Instant::now();
    let copies: Vec<Vec<u8>> = weights.to_vec();
    black_box(&copies);
    (into_held, began.elapsed())
}
