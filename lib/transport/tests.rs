//! Every way: versions arrive bit by bit, at engines that follow, come late or start again; what is broken is refused by name.

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
fn changes_are_small_and_whole_versions_come_at_intervals_and_where_they_are_wanted() {
    let mut run = Run::new(SyncTransport::Delta);
    run.publish(0..9);
    let is_whole = |run: &Run, version| run.file(version, "model.safetensors").exists();
    let whole: Vec<u64> = (0..9).filter(|version| is_whole(&run, *version)).collect();
    assert_eq!(whole, [0, 4, 8]);
    let bytes = |path| fs::metadata(path).unwrap().len();
    assert!(bytes(run.file(1, "delta.safetensors")) * 5 < bytes(run.file(0, "model.safetensors")));
    let told = |version| {
        let path = run.dir.path().join(paths::version(place(version)));
        let publication: Publication = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        publication.num_bytes
    };
    assert!(told(0) == run.version(place(0)).num_bytes() && (1..told(0) / 5).contains(&told(1)));
    run.train();
    let wanted = Version { is_whole: true, ..run.version(place(9)) };
    assert_eq!(run.send(wanted).base, None);
    assert_eq!(run.publish(10..11).len(), 1);
    assert!(!is_whole(&run, 10));
    // Where everything changes, changes would take more.
    run.weights = run.specs.iter().map(|s| (0..s.num_bytes()).map(|_| run.rng.random()).collect()).collect();
    let version = run.version(place(11));
    assert_eq!(run.send(version).base, None);
    let weights = Some(run.weights.clone());
    assert_eq!(run.receive(&mut run.ways(), 11).unwrap(), weights);
    // Nothing changes at all.
    let version = run.version(place(12));
    assert_eq!(run.send(version).base.map(|base| base.version), Some(11));
    assert_eq!(run.receive(&mut run.ways(), 12).unwrap(), weights);
    // A trainer that starts again has nothing to tell changes against.
    run.sender = run.ways();
    let version = run.version(Physical { version: 12, epoch: 2 });
    assert_eq!(run.send(version).base, None);
}

#[test]
fn gaps_and_other_bases_are_one_clear_error_and_what_was_pruned_is_none() {
    let mut run = Run::new(SyncTransport::Delta);
    let versions = run.publish(0..4);
    let mut at_two = run.ways();
    run.receive(&mut at_two, 2).unwrap();
    let base = run.dir.path().join(paths::version(place(1)));
    let text = fs::read_to_string(&base).unwrap();
    fs::remove_file(&base).unwrap();
    let error = run.receive(&mut run.ways(), 3).unwrap_err();
    assert_eq!(error.exit_code(), 65);
    let expected = "version 000003.e001: expected the published version 000001.e001, whose changes lead to it, found none";
    assert_eq!(error.to_string(), expected);
    // Who holds the version before needs no older one.
    assert_eq!(run.receive(&mut at_two, 3).unwrap().as_ref(), Some(&versions[3]));
    let mut other: Publication = serde_json::from_str(&text).unwrap();
    other.hash ^= 1;
    fs::write(&base, serde_json::to_vec(&other).unwrap()).unwrap();
    let error = run.receive(&mut run.ways(), 2).unwrap_err();
    assert!(matches!(error, Error::Base { .. }), "{error}");
    assert!(error.to_string().starts_with("version/000001.e001.json: expected the weights "), "{error}");
    fs::write(&base, text).unwrap();
    assert_eq!(run.receive(&mut run.ways(), 3).unwrap().as_ref(), Some(&versions[3]));
    fs::remove_file(run.dir.path().join(paths::version(place(3)))).unwrap();
    assert_eq!(run.receive(&mut run.ways(), 3).unwrap(), None);
}

#[test]
fn corrupt_changes_are_named_and_the_engine_recovers_with_the_next_version() {
    let mut run = Run::new(SyncTransport::Delta);
    let versions = run.publish(0..5);
    let mut engine = run.ways();
    run.receive(&mut engine, 1).unwrap();
    let file = run.file(2, "delta.safetensors");
    let intact = fs::read(&file).unwrap();
    for from_end in [3, 40, intact.len() - 200] {
        flip(&file, from_end);
        let error = run.receive(&mut engine, 2).unwrap_err();
        assert_eq!(error.exit_code(), 65, "{error}");
        assert!(error.to_string().contains("weights/000002.e001/delta.safetensors"), "{error}");
        assert!(run.receive(&mut engine, 3).is_err(), "version 3 builds on it");
        fs::write(&file, &intact).unwrap();
    }
    fs::write(&file, &intact[..intact.len() - 9]).unwrap();
    let error = run.receive(&mut engine, 2).unwrap_err();
    assert!(error.to_string().contains("delta.safetensors: truncated"), "{error}");
    assert_eq!(run.receive(&mut engine, 4).unwrap().as_ref(), Some(&versions[4]), "the next whole one");
    fs::write(&file, &intact).unwrap();
    assert_eq!(run.receive(&mut engine, 3).unwrap().as_ref(), Some(&versions[3]));
    // Changes of another model.
    fs::copy(run.file(3, "delta.safetensors"), &file).unwrap();
    assert_eq!(run.receive(&mut run.ways(), 2).unwrap_err().exit_code(), 65);
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
fn memory_holds_what_may_be_asked_for_and_the_disk_what_outlives_it() {
    let mut run = Run::new(SyncTransport::Shm);
    let versions = run.publish(0..2);
    run.sender.sender().keep(place(0)).unwrap();
    run.sender.sender().keep(place(0)).unwrap();
    run.train();
    let last = Version { readable: vec![place(1)], is_whole: true, ..run.version(place(2)) };
    let publication = run.send(last);
    let last = run.weights.clone();
    let folder = Path::new(&publication.memory.clone().unwrap().dir).parent().unwrap().to_owned();
    let is_there = |version| folder.join(place(version).to_string()).exists();
    assert_eq!([0, 1, 2].map(is_there), [false, true, true]);
    assert_eq!(
        fs::read_to_string(folder.join("RUN")).unwrap(),
        run.dir.path().canonicalize().unwrap().to_string_lossy()
    );
    let mut engine = run.ways();
    assert_eq!(run.receive(&mut engine, 0).unwrap().as_ref(), Some(&versions[0]), "from disk");
    // The trainer of an older epoch that wakes up takes nothing from its successor.
    let successor = Version { readable: vec![place(2)], ..run.version(Physical { version: 2, epoch: 2 }) };
    run.send(successor);
    let zombie = run.version(place(3));
    run.send(zombie);
    assert!(folder.join("000002.e002").exists());
    run.sender.end(1).unwrap();
    assert!(folder.exists(), "a successor's");
    run.sender.end(2).unwrap();
    assert!(!folder.exists());
    assert_eq!(run.receive(&mut engine, 1).unwrap(), None);
    assert_eq!(run.receive(&mut engine, 2).unwrap(), Some(last));
}

#[test]
fn weights_in_another_nodes_memory_are_out_of_reach_and_those_of_before_a_reboot_are_gone() {
    let mut run = Run::new(SyncTransport::Shm);
    run.publish(0..1);
    let path = run.dir.path().join(paths::version(place(0)));
    let mut publication: Publication = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut told = |publication: &Publication| {
        fs::write(&path, serde_json::to_vec(publication).unwrap()).unwrap();
        run.receive(&mut run.ways(), 0)
    };
    let memory = publication.memory.as_mut().unwrap();
    memory.boot = "before".to_owned();
    assert_eq!(told(&publication).unwrap(), None);
    publication.memory.as_mut().unwrap().host = "far".to_owned();
    let error = told(&publication).unwrap_err();
    assert_eq!(error.exit_code(), 69);
    assert!(error.to_string().starts_with("version 000000.e001: expected to run on far, "), "{error}");
    publication.memory = None;
    assert!(
        told(&publication).unwrap_err().to_string().contains("transport shm: expected memory, found none")
    );
    publication.transport = "pigeon".to_owned();
    let error = told(&publication).unwrap_err();
    assert_eq!(
        error.to_string(),
        "version/000000.e001.json: transport: expected disk, delta or shm, got pigeon"
    );
}

#[test]
fn what_runs_left_in_memory_whose_directories_are_gone_is_removed() {
    let mut run = Run::new(SyncTransport::Shm);
    let (gone, living) = (run.memory.path().join("slime-run-1"), run.memory.path().join("slime-run-2"));
    for (folder, owner) in [(&gone, "/nonexistent/run"), (&living, "/proc")] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("RUN"), owner).unwrap();
    }
    run.publish(0..1);
    assert!(!gone.exists() && living.exists());
    let not_memory = Sync { memory_dir: "/proc".to_owned(), ..run.config.clone() };
    let mut sender = Ways::new(&RunDir::new(run.dir.path()), &not_memory);
    let error = sender.sender().begin(run.version(place(1))).err().unwrap();
    assert!(error.to_string().starts_with("sync.memory_dir /proc: expected a tmpfs"), "{error}");
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

#[test]
fn the_file_of_a_version_that_nobody_reads_is_written_again_and_one_that_is_read_never() {
    use std::os::unix::fs::MetadataExt;
    let mut run = Run::new(SyncTransport::Shm);
    let publish = |run: &mut Run, version: u64| {
        run.train();
        let readable = version.checked_sub(1).map(place).into_iter().collect();
        let publication = run.send(Version { readable, ..run.version(place(version)) });
        let file = Path::new(&publication.memory.unwrap().dir).join("model.safetensors");
        fs::metadata(file).unwrap().ino()
    };
    let (mut engine, mut slow) = (run.ways(), run.ways());
    let mut inodes = Vec::new();
    for version in 0..4 {
        inodes.push(publish(&mut run, version));
        let weights = Some(run.weights.clone());
        assert_eq!(run.receive(&mut engine, version).unwrap(), weights);
    }
    assert_eq!((inodes[2], inodes[3]), (inodes[0], inodes[1]));
    let read = slow.receive(&mut run.store, place(3)).unwrap().unwrap().dir;
    let before = fs::File::open(read.join("model.safetensors")).unwrap();
    for version in 4..7 {
        let inode = publish(&mut run, version);
        assert_ne!(inode, inodes[3], "version 3 is read");
        let weights = Some(run.weights.clone());
        assert_eq!(run.receive(&mut engine, version).unwrap(), weights);
    }
    assert_eq!(before.metadata().unwrap().nlink(), 0, "it went as a file of the run");
    let other = vec![TensorSpec { name: "other".into(), dtype: Dtype::U8, shape: vec![9] }];
    run.weights = vec![vec![1; 9]];
    run.specs = other;
    publish(&mut run, 7);
    let weights = Some(run.weights.clone());
    assert_eq!(run.receive(&mut engine, 7).unwrap(), weights, "of another size");
}
