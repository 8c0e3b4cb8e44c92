//! slime-sync from the outside: what it verifies, what it copies, and what it refuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use slime_transport::DiskWriter;
use slime_weights::{Dtype, TensorSpec};

fn sync(args: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-sync")).args(args).output().expect("slime-sync starts")
}

/// A run with the versions 0 and 1; the file of the weights of version 1.
fn run_dir(root: &Path) -> PathBuf {
    fs::create_dir_all(root.join("version")).expect("writable");
    fs::create_dir_all(root.join("weights")).expect("writable");
    for version in 0..2_u8 {
        let name = format!("{version:06}.e000");
        let path = format!("weights/{name}");
        let spec = TensorSpec { name: "w".into(), dtype: Dtype::U8, shape: vec![4] };
        let mut writer = DiskWriter::create(root.join(&path), vec![spec]).expect("a new directory");
        writer.write("w", &[version; 4]).expect("the tensor");
        writer.add_file("config.json", b"{}").expect("a file");
        let publication = writer.finish().expect("finished").publication(u64::from(version), 0, path);
        let text = serde_json::to_vec(&publication).expect("JSON");
        fs::write(root.join(format!("version/{name}.json")), text).expect("writable");
    }
    root.join("weights/000001.e000/model.safetensors")
}

#[test]
fn intact_versions_are_verified_one_by_one() {
    let root = tempfile::tempdir().expect("a temporary directory");
    run_dir(root.path());
    let output = sync(&[Path::new("verify"), root.path()]);
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success());
    assert_eq!(stdout.lines().filter(|line| line.contains(" ok 1 tensors ")).count(), 2, "{stdout}");
}

#[test]
fn corrupt_version_is_named_and_never_pushed() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let file = run_dir(root.path());
    let mut bytes = fs::read(&file).expect("readable");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&file, bytes).expect("writable");
    let output = sync(&[Path::new("verify"), root.path()]);
    assert_eq!(output.status.code(), Some(65));
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(stdout.contains("000000.e000 ok") && stdout.contains("000001.e000 broken"), "{stdout}");
    let copy = root.path().join("copy");
    assert_eq!(sync(&[Path::new("push"), root.path(), &copy]).status.code(), Some(65));
    assert!(!copy.exists());
    let old = [Path::new("push"), root.path(), &copy, Path::new("--version"), Path::new("0")];
    assert!(sync(&old).status.success());
    assert_eq!(fs::read(copy.join("config.json")).expect("copied"), b"{}");
}

#[test]
fn newest_version_is_pushed_once() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let file = run_dir(root.path());
    let copy = root.path().join("copy");
    assert!(sync(&[Path::new("push"), root.path(), &copy]).status.success());
    assert_eq!(fs::read(copy.join("model.safetensors")).expect("copied"), fs::read(file).expect("readable"));
    assert_eq!(sync(&[Path::new("push"), root.path(), &copy]).status.code(), Some(73));
}

#[test]
fn absent_runs_and_versions_are_no_input() {
    let root = tempfile::tempdir().expect("a temporary directory");
    assert_eq!(sync(&[Path::new("verify"), &root.path().join("none")]).status.code(), Some(66));
    run_dir(root.path());
    let args = [Path::new("verify"), root.path(), Path::new("--version"), Path::new("7")];
    let output = sync(&args);
    assert_eq!(output.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected version 7, found none"));
    fs::remove_dir_all(root.path().join("weights/000001.e000")).expect("removable");
    assert_eq!(sync(&[Path::new("push"), root.path(), &root.path().join("c")]).status.code(), Some(66));
}

#[test]
fn weight_directory_is_verified_by_itself() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    let output = sync(&[Path::new("verify"), &dir]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn plan(args: &str) -> Output {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-sync"));
    command.current_dir(home).arg("plan").args(args.split_whitespace()).output().expect("slime-sync starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn plan_of_two_layouts_says_what_goes_over_which_way() {
    let of = "configs/models/Qwen3-0.6B.json --trainer tp=2,pp=2,dp=2 --engine tp=2 --replicas 4 --gpus-per-node 4";
    let output = plan(of);
    let shown = text(&output.stdout);
    assert!(output.status.success() && shown.contains("trainer    tp 2, pp 2, dp 2: 8 ranks\n"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_slice(&plan(&format!("{of} --json")).stdout).expect("JSON");
    // Two ranks hold all of the 596,049,920 parameters, and both the 57,344 + 7,168 + 1,024 of the norms.
    let of_replica = 2 * (596_049_920 + 28 * (2 * 1024 + 2 * 128) + 1024);
    assert_eq!(json["bytes"]["network"], 4 * of_replica, "{json}");
    assert_eq!(json["sent"].as_array().map(Vec::len), Some(8));
    let lines = text(&plan(&format!("{of} --list links")).stdout);
    let bytes = lines.lines().skip(1).map(|line| line.rsplit('\t').next().expect("bytes").parse::<u64>());
    assert_eq!(bytes.sum::<Result<u64, _>>().expect("numbers"), 4 * of_replica);
    let lines = text(&plan(&format!("{of} --list transfers")).stdout);
    assert_eq!(lines.lines().count() - 1, 4 * json["num_transfers"].as_u64().expect("a number") as usize);
}

#[test]
fn plan_refuses_what_does_not_fit_with_a_hint() {
    let model = "configs/models/GLM-4.7.json";
    for (args, code, part) in [
        (format!("{model} --trainer tp=5 --engine tp=1"), 65, "tp divides the 96 heads"),
        (format!("{model} --trainer vp=3 --engine tp=1"), 64, "expected tp, pp, cp, ep, etp or dp"),
        (
            "configs/models/Qwen3-4B.json --trainer tp=8 --engine tp=8 --dtype fp8_block".to_owned(),
            78,
            "expected boxes of whole blocks of 128 x 128",
        ),
        ("no/such.json --trainer tp=1 --engine tp=1".to_owned(), 66, "no/such.json"),
    ] {
        let output = plan(&args);
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(part), "{args}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

fn bench(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-sync"));
    command.arg("bench").args(args.split_whitespace()).output().expect("slime-sync starts")
}

#[test]
fn bench_measures_every_way_and_leaves_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let place = format!("--dir {} --memory-dir {}", dir.path().display(), memory.path().display());
    let output = bench(&format!("{place} --size-mb 1 --repeats 1"));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split('\t').collect()).collect();
    let ways: Vec<&str> = lines.iter().skip(1).map(|line| line[0]).collect();
    assert_eq!(ways, ["disk", "delta", "shm"], "{shown}");
    assert!(
        lines.iter().skip(1).all(|line| line[1..5].iter().all(|n| n.parse::<f64>().is_ok_and(|n| n >= 0.0)))
    );
    let sent: Vec<u64> = lines.iter().skip(1).map(|line| line[5].parse().expect("bytes")).collect();
    assert!(sent[0] >= 1 << 20 && sent[2] >= 1 << 20 && sent[1] < 1 << 16, "{shown}");
    for left in [dir.path(), memory.path()] {
        assert_eq!(fs::read_dir(left).expect("our own folder").count(), 0);
    }
    assert_eq!(bench("--transport pigeon").status.code(), Some(64));
    assert_eq!(bench("--dir /nonexistent").status.code(), Some(66));
    let output = bench(&format!("{place} --transport shm --memory-dir /proc --size-mb 1"));
    assert_eq!(output.status.code(), Some(64), "given twice");
    let output =
        bench(&format!("--dir {} --transport shm --memory-dir /proc --size-mb 1", dir.path().display()));
    assert_eq!(output.status.code(), Some(78));
    assert!(
        text(&output.stderr).contains("sync.memory_dir /proc: expected a tmpfs"),
        "{}",
        text(&output.stderr)
    );
}
