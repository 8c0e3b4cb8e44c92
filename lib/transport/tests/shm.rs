//! Versions in memory: what stays there and what goes to disk, whose it is, and when a file is written again.

use std::os::unix::fs::MetadataExt;

use super::*;

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
    let [gone, living, unseen] = [1, 2, 3].map(|n| run.memory.path().join(format!("slime-run-{n}")));
    for (folder, owner) in [(&gone, "/proc/run"), (&living, "/proc"), (&unseen, "/nonexistent/run")] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("RUN"), owner).unwrap();
    }
    run.publish(0..1);
    assert!(!gone.exists() && living.exists() && unseen.exists());
    let not_memory = Sync { memory_dir: "/proc".to_owned(), ..run.config.clone() };
    let mut sender = Ways::new(&RunDir::new(run.dir.path()), &not_memory);
    let error = sender.sender().begin(run.version(place(1))).err().unwrap();
    assert!(error.to_string().starts_with("sync.memory_dir /proc: expected a tmpfs"), "{error}");
}

#[test]
fn the_file_of_a_version_that_nobody_reads_is_written_again_and_one_that_is_read_never() {
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
