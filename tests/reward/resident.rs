//! The worker that stays with a run.

use std::fs;
use std::process::Command;

use crate::{message, reward};

#[test]
fn resident_worker_scores_segments_until_the_run_is_done() {
    use slime_exchange::{ArrowFormat, Format, FsStore, SegmentHeader, Store};
    let folder = tempfile::tempdir().expect("a folder can be made");
    let run = folder.path().to_str().expect("the path is text");
    let toml = folder.path().join("run.toml");
    fs::write(&toml, "[reward]\nplacement = \"inline\"\n").expect("writable");
    let inline = reward(&["--follow", run], "");
    assert_eq!((inline.status.code(), message(&inline).contains("placement is inline")), (Some(78), true));
    fs::write(&toml, "[reward]\nplacement = \"separate\"\ntypes = [\"number:2\"]\n").expect("writable");

    let answer = |index: u32, response: &str| slime_record::Sample {
        index,
        response: response.to_owned(),
        label: Some("4".to_owned()),
        ..slime_record::Sample::default()
    };
    let format = ArrowFormat::default();
    let header = SegmentHeader { step: 0, epoch: 0, replica: 0, incarnation: 0 };
    let mut store = FsStore::open(folder.path()).expect("opens");
    let rows = [answer(0, "4"), answer(1, "5")];
    let path = "rollout/000000/replica-0.000000.000000.arrow";
    store.seal_with(path, &mut |out| format.write(&header, &rows, out)).expect("seals");

    let mut child =
        Command::new(env!("CARGO_BIN_EXE_slime-reward")).args(["--follow", run]).spawn().expect("it starts");
    let column = loop {
        let dir = "column/reward/000000";
        if let Some(file) = store.list(dir).expect("lists").first() {
            break store.read(&format!("{dir}/{file}")).expect("reads").expect("the column is there");
        }
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended without a column");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    fs::create_dir_all(folder.path().join("control")).expect("writable");
    fs::write(folder.path().join("control/done"), "").expect("writable");
    assert!(child.wait().expect("it ends").success());
    let column = format.column("reward", &column).expect("reads");
    let values: Vec<f32> = column.rows.iter().map(|row| row.value).collect();
    assert_eq!(values, [2.0, 0.0]);
}
