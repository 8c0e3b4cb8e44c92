//! Every way: versions arrive bit by bit, at engines that follow, come late or start again; what is broken is refused by name.

mod delta;
mod shm;

use std::fs;
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::{RunDir, Sync, SyncTransport, paths};
use slime_exchange::{FsStore, Physical, Store};
use slime_record::Publication;
use slime_weights::{Dtype, TensorSpec, WeightDir};
use tempfile::TempDir;

use crate::{Error, Result, Transport, Version, Ways};

/// A run with a trainer that changes a few of its weights at each step.
struct Run {
    dir: TempDir,
    /// A folder of its own in the memory of the node.
    memory: TempDir,
    config: Sync,
    store: FsStore,
    rng: ChaCha8Rng,
    specs: Vec<TensorSpec>,
    weights: Vec<Vec<u8>>,
    sender: Ways,
}

impl Run {
    fn new(transport: SyncTransport) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let memory_dir = memory.path().display().to_string();
        let config = Sync { transport, full_interval: 4, memory_dir };
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let spec = |name: &str, dtype, len| TensorSpec { name: name.into(), dtype, shape: vec![len] };
        let specs = vec![
            spec("model.b", Dtype::BF16, 3001),
            spec("model.a", Dtype::F32, 500),
            spec("scale", Dtype::U8, 77),
        ];
        let weights = specs.iter().map(|s| (0..s.num_bytes()).map(|_| rng.random()).collect()).collect();
        let store = FsStore::open(dir.path()).unwrap();
        let sender = Ways::new(&RunDir::new(dir.path()), &config);
        Self { dir, memory, config, store, rng, specs, weights, sender }
    }

    fn ways(&self) -> Ways {
        Ways::new(&RunDir::new(self.dir.path()), &self.config)
    }

    /// One step of training: some values move by a little.
    fn train(&mut self) {
        for weights in &mut self.weights {
            for pair in weights.as_chunks_mut::<2>().0 {
                if self.rng.random_ratio(1, 50) {
                    *pair = u16::from_le_bytes(*pair).wrapping_add(1).to_le_bytes();
                }
            }
        }
    }

    fn version(&self, place: Physical) -> Version {
        Version {
            place,
            is_whole: false,
            readable: Vec::new(),
            tensors: self.specs.clone(),
            side_files: vec![("config.json".to_owned(), b"{}".to_vec())],
        }
    }

    fn send(&mut self, version: Version) -> Publication {
        let place = version.place;
        let publication = send(self.sender.sender(), version, &self.specs, &self.weights).unwrap();
        self.store.commit(&paths::version(place), &serde_json::to_vec(&publication).unwrap()).unwrap();
        publication
    }

    /// Trains and publishes versions `from..to` of epoch 1; the weights of each.
    fn publish(&mut self, versions: std::ops::Range<u64>) -> Vec<Vec<Vec<u8>>> {
        let publish = |version| {
            self.train();
            let mut version = self.version(place(version));
            // All that was ever published.
            version.readable = (0..version.place.version).map(place).collect();
            self.send(version);
            self.weights.clone()
        };
        versions.map(publish).collect()
    }

    /// What `ways` gets of a version of epoch 1.
    fn receive(&mut self, ways: &mut Ways, version: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(received) = ways.receive(&mut self.store, place(version))? else { return Ok(None) };
        assert_eq!(fs::read(received.dir.join("config.json")).unwrap(), b"{}");
        let dir = WeightDir::open_stored(&received.dir)?;
        let tensor = |spec: &TensorSpec| Ok(dir.tensor(&spec.name)?.bytes.into_owned());
        self.specs.iter().map(tensor).collect::<Result<_>>().map(Some)
    }

    fn file(&self, version: u64, name: &str) -> std::path::PathBuf {
        self.dir.path().join(paths::weights(place(version))).join(name)
    }
}

fn place(version: u64) -> Physical {
    Physical { version, epoch: 1 }
}

fn send(
    sender: &mut dyn Transport,
    version: Version,
    specs: &[TensorSpec],
    weights: &[Vec<u8>],
) -> Result<Publication> {
    let mut outgoing = sender.begin(version)?;
    for (spec, bytes) in specs.iter().zip(weights) {
        outgoing.write(&spec.name, bytes)?;
    }
    outgoing.finish()
}

fn flip(path: &Path, from_end: usize) {
    let mut bytes = fs::read(path).unwrap();
    let index = bytes.len() - from_end;
    bytes[index] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn every_way_brings_every_version_bit_by_bit_to_engines_that_follow_come_late_and_start_again() {
    for transport in SyncTransport::ALL {
        let mut run = Run::new(transport);
        let versions = run.publish(0..7);
        let mut following = run.ways();
        for (version, weights) in (0..).zip(&versions) {
            assert_eq!(
                run.receive(&mut following, version).unwrap().as_ref(),
                Some(weights),
                "{transport:?}"
            );
        }
        for version in [6, 2, 3, 5, 0] {
            let weights = Some(&versions[version as usize]);
            assert_eq!(run.receive(&mut run.ways(), version).unwrap().as_ref(), weights, "{transport:?}");
            assert_eq!(run.receive(&mut following, version).unwrap().as_ref(), weights, "{transport:?}");
        }
        assert_eq!(run.receive(&mut following, 9).unwrap(), None);
        drop(following);
        let is_image = |name: &str| name.starts_with(".tmp.");
        let left = fs::read_dir(run.memory.path()).unwrap().flatten();
        let left = left.filter(|entry| is_image(&entry.file_name().to_string_lossy()));
        assert_eq!(left.count(), 0, "{transport:?}: images go with their engines");
    }
}

#[test]
fn a_version_that_breaks_off_leaves_nothing_and_the_next_one_arrives() {
    for transport in SyncTransport::ALL {
        let mut run = Run::new(transport);
        run.publish(0..2);
        run.train();
        let version = run.version(place(2));
        let mut outgoing = run.sender.sender().begin(version).unwrap();
        outgoing.write("model.b", &run.weights[0]).unwrap();
        let error = outgoing.write("scale", &run.weights[2]).unwrap_err();
        assert!(error.to_string().contains("expected model.a with 2000 bytes"), "{error}");
        drop(outgoing);
        let version = run.version(place(2));
        let mut outgoing = run.sender.sender().begin(version).unwrap();
        outgoing.write("model.b", &run.weights[0]).unwrap();
        let error = outgoing.finish().unwrap_err();
        assert!(error.to_string().contains("model.a"), "{error}");
        assert!(!run.file(2, "").exists(), "{transport:?}");
        let weights = run.publish(2..3).pop();
        assert_eq!(run.receive(&mut run.ways(), 2).unwrap(), weights, "{transport:?}");
    }
}

#[test]
fn corrupt_bytes_in_memory_and_on_disk_are_named() {
    for (transport, mut run) in [SyncTransport::Disk, SyncTransport::Shm].map(|way| (way, Run::new(way))) {
        run.publish(0..1);
        let mut engine = run.ways();
        let dir = engine.receive(&mut run.store, place(0)).unwrap().unwrap().dir;
        flip(&dir.join("model.safetensors"), 1);
        let error = engine.receive(&mut run.store, place(0)).unwrap_err();
        assert_eq!(error.exit_code(), 65);
        assert!(
            error.to_string().contains("tensor scale: chunk 0: expected checksum"),
            "{transport:?}: {error}"
        );
    }
}

#[test]
fn publications_of_other_places_and_outside_the_run_are_refused() {
    let mut run = Run::new(SyncTransport::Disk);
    run.publish(0..1);
    let (from, to) = [0, 1].map(|version| run.dir.path().join(paths::version(place(version)))).into();
    fs::copy(&from, &to).unwrap();
    let error = run.receive(&mut run.ways(), 1).unwrap_err();
    assert!(error.to_string().contains("expected version 000001.e001, got 000000.e001"), "{error}");
    let mut publication: Publication = serde_json::from_slice(&fs::read(&from).unwrap()).unwrap();
    publication.path = Some("../elsewhere".to_owned());
    fs::write(&from, serde_json::to_vec(&publication).unwrap()).unwrap();
    let error = run.receive(&mut run.ways(), 0).unwrap_err();
    assert!(error.to_string().contains("path: expected one below the run directory"), "{error}");
}
