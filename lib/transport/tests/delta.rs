//! Versions in changes: when they are whole, gaps, broken files, and that an engine recovers.

use super::*;

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
    let mut circle: Publication = serde_json::from_str(&text).unwrap();
    circle.base.as_mut().unwrap().version = 1;
    fs::write(&base, serde_json::to_vec(&circle).unwrap()).unwrap();
    let error = run.receive(&mut run.ways(), 1).unwrap_err();
    assert!(error.to_string().ends_with("base: expected an earlier version, got 000001.e001"), "{error}");
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
