//! `slime-stat archive` from the outside: what it packs and leaves, how packed files are read, and how they come back.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use slime_record::{
    Account, Draw, Epoch, Manifest, Provenance, Sample, Stages, Status, VersionRun, encode_segment,
};

fn stat(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-stat")).args(args).output().expect("slime-stat starts")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn archive(run: &Path, more: &[&str]) -> Output {
    stat(&[&["archive", run.to_str().expect("text")], more].concat())
}

fn write(run: &Path, name: &str, bytes: &[u8]) {
    fs::create_dir_all(run.join(name).parent().expect("a folder")).expect("writable");
    fs::write(run.join(name), bytes).expect("writable");
}

fn segment(step: u64) -> Vec<u8> {
    let sample = Sample {
        step,
        tokens: vec![1, 2, 3],
        prompt_len: 1,
        loss_mask: vec![1, 1],
        rollout_log_probs: vec![-0.5, -0.25],
        weight_versions: vec![VersionRun { version: step, len: 2 }],
        status: Status::Completed,
        response: "an answer".repeat(50),
        ..Sample::default()
    };
    encode_segment(&vec![sample; 20], &Provenance::default()).expect("encodes")
}

/// A run of five committed steps with checkpoints at versions 3 and 4, of which the older one still names step 2, whose
/// manifest it continues from; a group of step `outstanding` is still out when
/// step 2 is committed.
fn make_run(run: &Path, outstanding: Option<u64>) {
    let epoch = Epoch { epoch: 1, parent: None, checkpoint: 0, holder: String::new() };
    write(run, "epoch/000001", &serde_json::to_vec(&epoch).expect("JSON"));
    write(run, "run.toml", b"");
    for step in 0..5 {
        let draw = outstanding.filter(|_| step == 2).map(|step| Draw {
            step,
            group: 0,
            cursor: 0,
            chosen: None,
            attempt: 0,
        });
        let manifest = Manifest {
            step,
            builder: 1,
            epoch: 1,
            min_version: 0,
            groups: Vec::new(),
            refused: Vec::new(),
            dropped: Vec::new(),
            carried: Vec::new(),
            outstanding: draw.into_iter().collect(),
            returned: Vec::new(),
            next_group: BTreeMap::new(),
            cursor: 4,
            account: Account::default(),
            stages: Stages::default(),
        };
        write(
            run,
            &format!("rollout/{step:06}/MANIFEST.json"),
            &serde_json::to_vec(&manifest).expect("JSON"),
        );
        write(run, &format!("rollout/{step:06}/replica-0.000001.000000.arrow"), &segment(step));
        write(run, &format!("rollout/{step:06}/assign-0.000001.000000.json"), b"{}");
        write(run, &format!("column/reward/{step:06}/0.000001.000000.arrow"), &segment(step));
    }
    for version in [3, 4] {
        write(run, &format!("checkpoint/{version:06}.e001/COMPLETE"), b"0");
    }
    write(run, "metrics/train.jsonl", b"{\"step\":0,\"reward_mean\":0.5}\n");
    write(run, "attempt-0/outcome", b"drained\n");
    write(run, "attempt-0/log/trainer.log", &b"a line\n".repeat(500));
    write(run, "attempt-1/log/trainer.log", b"goes on");
}

/// All files of the run but those of the archive and of its owner.
fn snapshot(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.insert(path.clone(), fs::read(path).expect("readable"));
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(run, &mut found);
    found.retain(|path, _| !path.starts_with(run.join("archive")) && !path.starts_with(run.join("owner")));
    found
}

#[test]
fn steps_that_nothing_needs_are_packed_read_and_restored_bit_by_bit() {
    let root = tempfile::tempdir().expect("a folder");
    let run = root.path();
    make_run(run, None);
    let before = snapshot(run);
    let output = archive(run, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.starts_with("packed 7 files of 2 steps, "), "{text}");
    assert!(text.contains("steps from 2 on stay: checkpoint 000003.e001 needs them\n"), "{text}");
    let gone: Vec<String> = before
        .keys()
        .filter(|path| !path.exists())
        .map(|path| path.strip_prefix(run).expect("inside").to_str().expect("text").to_owned())
        .collect();
    assert_eq!(gone.len(), 7, "{gone:?}");
    assert!(
        run.join("rollout/000000/MANIFEST.json").exists() && run.join("attempt-1/log/trainer.log").exists()
    );
    let names: Vec<_> =
        fs::read_dir(run.join("archive")).expect("a folder").map(|e| e.expect("e").file_name()).collect();
    assert!(names.len() == 2 && names.iter().any(|name| name == "000000-000001.zst"), "{names:?}");

    // The report goes on as before, and inspect shows a packed segment as if it were there.
    assert!(stat(&[run.to_str().expect("text")]).status.success());
    let path = run.join("rollout/000001/replica-0.000001.000000.arrow");
    assert!(!path.exists());
    let output =
        Command::new(env!("CARGO_BIN_EXE_slime-convert")).args(["inspect", "--json"]).arg(&path).output();
    let output = output.expect("slime-convert starts");
    assert!(output.status.success(), "{}", said(&output));
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&seen["kind"], &seen["num_rows"], &seen["steps"]),
        (&"segment".into(), &20.into(), &serde_json::json!([1]))
    );

    assert!(said(&archive(run, &[])).starts_with("nothing to pack; "));
    let output = archive(run, &["--restore", "rollout/000001", "attempt-0/log/trainer.log"]);
    assert!(said(&output).starts_with("restored 3 files, "), "{}", said(&output));
    assert!(path.exists() && !run.join("rollout/000000/assign-0.000001.000000.json").exists());
    let output = archive(run, &["--restore"]);
    assert!(
        said(&output).contains("restored 4 files") && said(&output).contains("3 were there"),
        "{}",
        said(&output)
    );
    assert!(snapshot(run) == before, "restored files differ");
    assert!(said(&archive(run, &[])).starts_with("removed 7 files that were packed; "));
}

#[test]
fn steps_that_are_needed_are_refused_and_named() {
    let root = tempfile::tempdir().expect("a folder");
    let run = root.path();
    make_run(run, Some(1));
    let before = snapshot(run);
    let output = archive(run, &["--steps", "0-2"]);
    assert_eq!(output.status.code(), Some(73), "{}", said(&output));
    assert!(said(&output).contains("step 1 is still needed: the run may go on from checkpoint 000003.e001"));
    assert!(said(&output).contains("hint: steps before 1 can be packed"), "{}", said(&output));
    assert!(snapshot(run) == before);
    let output = archive(run, &["--steps", "0-0"]);
    assert!(said(&output).starts_with("packed 4 files of 1 steps"), "{}", said(&output));
    fs::remove_dir_all(run.join("checkpoint")).expect("removable");
    let output = archive(run, &[]);
    assert!(output.status.success() && said(&output).contains("there is no checkpoint"), "{}", said(&output));
    assert_eq!(archive(run, &["--steps", "1-1"]).status.code(), Some(73));
    assert_eq!(archive(run, &["--steps", "3-1"]).status.code(), Some(64));
    assert_eq!(archive(run, &["--restore", "rollout/000009"]).status.code(), Some(66));
    assert_eq!(archive(&run.join("none"), &[]).status.code(), Some(66));
    assert_eq!(stat(&[]).status.code(), Some(64));
}
