//! What real tools refuse: corrupt versions, gaps, a second trainer, memory without room.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tiny_loop::{self, ROLLOUT, TRAIN, Tool, finish, log, start, start_in, wait_until};
use crate::{Desk, WAYS, assert_same, calm, ended, killing};

/// A run in changes whose engine ended just before it looked at version 2; its trainer waits for step 2.
fn before_version_two(desk: &Desk, name: &str) -> (PathBuf, Tool) {
    let run = desk.run(name, WAYS[1].1, &[]);
    let trainer = Tool { program: TRAIN, roles: &[], child: start(TRAIN, &[], &run) };
    let engine = start_in(ROLLOUT, &[], &run, &killing("weights/000002.e001", 1));
    assert!(!ended(engine, &run).success());
    (run, trainer)
}

/// Starts the engine, which ends by itself; its code, and what it said last.
fn refusal(run: &Path) -> (Option<i32>, String) {
    let status = ended(start(ROLLOUT, &[], run), run);
    let log = log(run);
    (status.code(), log[log.rfind("error: ").unwrap_or(0)..].trim().to_owned())
}

#[test]
fn a_corrupt_version_or_a_gap_is_one_clear_error_and_the_run_goes_on_once_it_is_mended() {
    let desk = Desk::new();
    let calm = calm(&desk);
    let (run, mut trainer) = before_version_two(&desk, "run");
    let changes = run.join("weights/000002.e001/delta.safetensors");
    let intact = fs::read(&changes).expect("version 2 is in changes");
    let mut broken = intact.clone();
    *broken.last_mut().expect("bytes") ^= 1;
    fs::write(&changes, broken).expect("writable");
    let (code, message) = refusal(&run);
    assert!(
        code == Some(65) && message.contains("weights/000002.e001/delta.safetensors: tensor "),
        "{message}"
    );
    fs::write(&changes, intact).expect("writable");

    let base = run.join("version/000001.e001.json");
    fs::rename(&base, run.join("elsewhere")).expect("writable");
    let (code, message) = refusal(&run);
    let expected = "version 000002.e001: expected the published version 000001.e001, whose changes lead to it, found none";
    assert!(code == Some(65) && message.contains(expected), "{message}");
    fs::rename(run.join("elsewhere"), &base).expect("writable");

    assert!(trainer.child.try_wait().expect("our own child").is_none(), "the trainer waits");
    let engine = Tool { program: ROLLOUT, roles: &[], child: start(ROLLOUT, &[], &run) };
    finish(vec![trainer, engine], &run);
    assert_same(&run, &calm);
}

#[test]
fn a_second_trainer_is_refused_and_one_that_takes_over_ends_the_first() {
    let desk = Desk::new();
    let calm = calm(&desk);
    for (way, sets) in WAYS {
        let run = desk.run(way, sets, &[]);
        let first = start(TRAIN, &[], &run);
        wait_until(&run, "version 0", || run.join("version/000000.e001.json").exists());
        assert_eq!(ended(start(TRAIN, &[], &run), &run).code(), Some(73), "{}", log(&run));
        let engine = Tool { program: ROLLOUT, roles: &[], child: start(ROLLOUT, &[], &run) };
        let second = start(TRAIN, &["--takeover"], &run);
        let code = ended(first, &run).code();
        // It may have been over before the second one came.
        assert!(code == Some(75) || code == Some(0), "{way}: {code:?}\n{}", log(&run));
        finish(vec![engine, Tool { program: TRAIN, roles: &["--takeover"], child: second }], &run);
        assert_same(&run, &calm);
        assert_eq!(desk.left(), Vec::<String>::new(), "{way}");
    }
}

#[test]
fn memory_without_room_is_one_clear_error_and_nothing_is_published() {
    let desk = Desk::new();
    let memory = desk.memory.path().display();
    for (way, program) in [(WAYS[2], "slime-train"), (WAYS[1], "slime-rollout")] {
        let run = desk.run(way.0, way.1, &[]);
        let trainer = (program == "slime-rollout").then(|| Tool {
            program: TRAIN,
            roles: &[],
            child: start(TRAIN, &[], &run),
        });
        let tool = Path::new(TRAIN).with_file_name(program);
        let script = format!(
            "mount -t tmpfs -o size=16k tmpfs '{memory}' || exit 99; exec '{}' --follow '{}'",
            tool.display(),
            run.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "bash", "-c", &script]).env("OMP_NUM_THREADS", "1");
        let output = command.output().expect("unshare is there");
        let message = String::from_utf8_lossy(&output.stderr);
        if let Some(mut trainer) = trainer {
            tiny_loop::kill(&mut trainer.child);
        }
        if output.status.code() == Some(99) || message.starts_with("unshare:") {
            eprintln!("skipped: no file system can be mounted here");
            return;
        }
        assert_eq!(output.status.code(), Some(74), "{message}");
        assert!(message.contains("expected room for ") && message.contains("hint: free some"), "{message}");
        let is_published = run.join("version/000000.e001.json").exists();
        assert_eq!(is_published, program == "slime-rollout");
    }
}
