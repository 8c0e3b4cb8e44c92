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
