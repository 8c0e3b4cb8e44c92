//! Packing is killed (SIGKILL) in each of its phases; nothing is ever lost, and the next call finishes the work.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use slime_archive::{
    Packed, Phase, Selection, ended_logs, pack, read_file, read_run_file, restore, step_files,
};

const RUN: &str = "SLIME_ARCHIVE_TEST_RUN";
const KILL_AT: &str = "SLIME_ARCHIVE_TEST_KILL_AT";
const NUM_PHASES: usize = 4;

/// Names and bytes of all that will be packed.
fn make_run(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for step in 0..2 {
        for replica in 0..2 {
            let bytes: Vec<u8> =
                (0..100_000_u32).flat_map(|i| (i / 7 * (replica + 1)).to_le_bytes()).collect();
            files.insert(format!("rollout/{step:06}/replica-{replica}.000001.000000.arrow"), bytes);
        }
        files.insert(format!("column/reward/{step:06}/0.000001.000000.arrow"), vec![step as u8; 300]);
    }
    files.insert("attempt-0/log/trainer.log".to_owned(), b"line\n".repeat(1000));
    files.insert("attempt-0/log/empty.log".to_owned(), Vec::new());
    let kept = ["rollout/000000/MANIFEST.json", "rollout/000001/MANIFEST.json", "attempt-1/log/trainer.log"];
    for (name, bytes) in
        files.iter().map(|(n, b)| (n.as_str(), &b[..])).chain(kept.map(|name| (name, &b"kept"[..])))
    {
        fs::create_dir_all(run.join(name).parent().expect("a folder")).expect("writable");
        fs::write(run.join(name), bytes).expect("writable");
    }
    fs::write(run.join("rollout/000000/.tmp.half"), "half").expect("writable");
    files
}

fn select(run: &Path) -> Selection {
    let mut names = step_files(run, 0).expect("listed");
    names.extend(step_files(run, 1).expect("listed"));
    names.extend(ended_logs(run).expect("listed"));
    Selection { stem: "000000-000001".to_owned(), names: names.into_iter().collect() }
}

/// Every file can be read, from wherever it is.
fn check(run: &Path, files: &BTreeMap<String, Vec<u8>>, when: &str) {
    for (name, bytes) in files {
        assert!(read_run_file(run, name).expect(when) == *bytes, "{when}: {name}");
    }
}

#[test]
#[ignore = "the process that another test kills"]
fn child_body() {
    let run = std::env::var(RUN).expect("set by the test that starts it");
    let kill_at: usize = std::env::var(KILL_AT).expect("the same").parse().expect("a number");
    let mut seen = 0;
    let run = Path::new(&run);
    pack(run, &select(run), &mut |_| {
        if seen == kill_at {
            let this = rustix::process::getpid();
            rustix::process::kill_process(this, rustix::process::Signal::KILL).expect("signals itself");
        }
        seen += 1;
    })
    .expect("packs");
    panic!("there are only {seen} moments");
}

#[test]
fn a_kill_at_any_moment_loses_nothing() {
    let num_files = 8;
    for kill_at in 0..NUM_PHASES + num_files {
        let root = tempfile::tempdir().expect("a folder");
        let run = root.path();
        let files = make_run(run);
        assert_eq!(files.len(), num_files);
        let status = Command::new(std::env::current_exe().expect("a name"))
            .args(["--exact", "child_body", "--ignored"])
            .env(RUN, run)
            .env(KILL_AT, kill_at.to_string())
            .output()
            .expect("starts")
            .status;
        assert!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(9), "{kill_at}: {status}");
        check(run, &files, &format!("killed at moment {kill_at}"));
        // What a kill left is finished, whatever it was.
        let outcome = pack(run, &select(run), &mut |_| ()).expect("packs");
        let num_gone = kill_at.saturating_sub(NUM_PHASES - 1);
        assert_eq!(outcome.num_removed, num_files - num_gone, "killed at moment {kill_at}");
        check(run, &files, "packed");
        assert!(files.keys().all(|name| !run.join(name).exists()));
        let left: Vec<String> = fs::read_dir(run.join("archive"))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        assert_eq!(left.len(), 2, "killed at moment {kill_at}: {left:?}");
    }
}

#[test]
fn packed_files_are_listed_read_and_restored_and_others_left_alone() {
    let root = tempfile::tempdir().expect("a folder");
    let run = root.path();
    let files = make_run(run);
    let mut phases = Vec::new();
    let outcome = pack(run, &select(run), &mut |phase| phases.push(phase)).expect("packs");
    assert_eq!(phases[..4], [Phase::Written, Phase::Verified, Phase::Renamed, Phase::Committed]);
    assert_eq!((outcome.num_packed, outcome.num_removed), (files.len(), files.len()));
    assert!(outcome.packed_bytes < outcome.num_bytes / 4, "{outcome:?}");
    for kept in ["rollout/000001/MANIFEST.json", "rollout/000000/.tmp.half", "attempt-1/log/trainer.log"] {
        assert!(run.join(kept).exists(), "{kept}");
    }
    let packed = Packed::open(run).expect("opens");
    assert_eq!(
        packed.list().map(|member| &member.name).collect::<Vec<_>>(),
        files.keys().collect::<Vec<_>>()
    );
    let segment = "rollout/000001/replica-1.000001.000000.arrow";
    assert_eq!(read_file(&run.join(segment)).expect("readable"), files[segment]);
    let error = read_file(&run.join("rollout/000009/x.arrow")).expect_err("nowhere");
    assert_eq!(error.exit_code(), 66);

    let some = restore(run, &["rollout/000001/".to_owned()]).expect("restores");
    assert_eq!(some.num_files, 2);
    assert_eq!(fs::read(run.join(segment)).expect("there"), files[segment]);
    let error = restore(run, &["rollout/00000".to_owned()]).expect_err("half a name");
    assert!(error.to_string().ends_with("rollout/00000 is not there, and no archive has it"), "{error}");
    let all = restore(run, &[]).expect("restores");
    assert_eq!((all.num_files, all.num_there), (files.len() - 2, 2));
    for (name, bytes) in &files {
        assert!(fs::read(run.join(name)).expect("there") == *bytes, "{name}");
    }
    // What is packed and there is removed once more, without a second archive.
    let again = pack(run, &select(run), &mut |_| ()).expect("packs");
    assert_eq!((again.archive, again.num_removed), (None, files.len()));
    fs::create_dir_all(run.join("rollout/000001")).expect("writable");
    fs::write(run.join(segment), "other").expect("writable");
    assert_eq!(pack(run, &select(run), &mut |_| ()).expect_err("differs").exit_code(), 65);
    assert!(
        restore(run, &[])
            .expect_err("differs")
            .to_string()
            .contains("differs from its copy in 000000-000001.zst")
    );
    assert_eq!(fs::read(run.join(segment)).expect("kept"), b"other");
}

#[test]
fn broken_archives_are_named() {
    let root = tempfile::tempdir().expect("a folder");
    let run = root.path();
    make_run(run);
    pack(run, &select(run), &mut |_| ()).expect("packs");
    let (archive, manifest) = (run.join("archive/000000-000001.zst"), run.join("archive/000000-000001.json"));
    let bytes = fs::read(&archive).expect("there");
    let mut broken = bytes.clone();
    let log =
        Packed::open(run).expect("opens").member("attempt-0/log/trainer.log").expect("packed").frames[0];
    broken[log.offset as usize + 9] ^= 0xff;
    fs::write(&archive, broken).expect("writable");
    let error = read_run_file(run, "attempt-0/log/trainer.log").expect_err("broken");
    assert!(
        error.to_string().contains("000000-000001.zst: corrupt: member attempt-0/log/trainer.log: "),
        "{error}"
    );
    assert_eq!(
        read_run_file(run, "column/reward/000001/0.000001.000000.arrow").expect("another frame"),
        [1; 300]
    );
    fs::write(&archive, &bytes[..20]).expect("writable");
    assert_eq!(
        read_run_file(run, "rollout/000001/replica-0.000001.000000.arrow").expect_err("cut").exit_code(),
        65
    );
    let text = fs::read_to_string(&manifest).expect("there");
    fs::write(&manifest, text.replace("attempt-0/log", "../log")).expect("writable");
    assert!(Packed::open(run).expect_err("outside").to_string().contains("impossible"));
}
