//! Checkpoints written by some ranks and read by others; damaged ones; full disks; writers killed at any moment.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use slime_checkpoint::{
    Checkpoint, Dtype, Error, Shard, Snapshot, Writer, checkpoints, complete, newest, prune, write,
};
use slime_config::{TensorBox, TensorPart};

const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of element range `range` of a tensor: any range of any tensor can be made without the rest.
fn content(name: &str, dtype: Dtype, range: Range<usize>, step: u64) -> Vec<u8> {
    let seed = name.bytes().fold(step + 1, |acc, b| acc.wrapping_mul(31).wrapping_add(u64::from(b)));
    let size = dtype.size();
    range
        .flat_map(|i| {
            (seed ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[8 - size..].to_vec()
        })
        .collect()
}

/// 6 million elements are 24 MB, more than one checksum's chunk.
const TENSORS: [(&str, Dtype, &[usize]); 6] = [
    ("optimizer/exp_avg/layers.0.qkv", Dtype::F32, &[2000, 3000]),
    ("model/layers.0.qkv", Dtype::Bf16, &[96, 64]),
    ("model/final_norm", Dtype::F64, &[7]),
    ("rng", Dtype::U8, &[5]),
    ("step", Dtype::U64, &[]),
    ("cursor", Dtype::I64, &[3]),
];

/// The elements `range` of a tensor as a shard of the same name.
fn range_of(name: &str, dtype: Dtype, shape: &[usize], range: Range<usize>, step: u64) -> Shard {
    let bytes = content(name, dtype, range.clone(), step);
    let parts = vec![TensorPart { range, ..TensorPart::whole(name, shape) }];
    Shard { name: name.into(), dtype, parts, bytes }
}

/// Rank `rank`'s even flat range of every tensor; small ones leave some ranks without an element.
fn snapshot(rank: usize, world_size: usize, step: u64) -> Snapshot {
    let shards = TENSORS
        .iter()
        .map(|&(name, dtype, shape)| {
            let at = |r: usize| shape.iter().product::<usize>() * r / world_size;
            range_of(name, dtype, shape, at(rank)..at(rank + 1), step)
        })
        .collect();
    let meta = serde_json::json!({ "step": step });
    Snapshot { rank, world_size, token: "e001.1".into(), meta, shards }
}

fn write_all(dir: &Path, world_size: usize, step: u64) {
    std::thread::scope(|scope| {
        for rank in 0..world_size {
            scope.spawn(move || write(dir, &snapshot(rank, world_size, step), PATIENCE).unwrap());
        }
    });
    assert!(matches!(Checkpoint::open(dir), Err(Error::Incomplete(_))), "nobody has completed it");
    complete(dir).unwrap();
}

/// Reads everything as `world_size` ranks with even ranges and compares.
fn check(dir: &Path, world_size: usize) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let step = checkpoint.meta()["step"].as_u64().unwrap();
    assert_eq!(checkpoint.tensors().count(), TENSORS.len());
    for (name, dtype, shape) in TENSORS {
        let info = checkpoint.tensor(name).unwrap();
        assert_eq!((info.dtype, info.shape.as_slice()), (dtype, shape));
        let total = info.num_elements();
        for rank in 0..world_size {
            let range = total * rank / world_size..total * (rank + 1) / world_size;
            assert!(
                checkpoint.read(name, range.clone()).unwrap() == content(name, dtype, range, step),
                "{name}"
            );
        }
    }
}

#[test]
fn any_number_of_ranks_reads_what_any_number_wrote() {
    for writers in [1, 2, 3] {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("000001.e001");
        write_all(&dir, writers, 1);
        for readers in [1, 2, 3, 7] {
            check(&dir, readers);
        }
        let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left.len(), writers + 2, "the files, index.json and COMPLETE only: {left:?}");
        assert!(matches!(write(&dir, &snapshot(0, 1, 1), PATIENCE), Err(Error::Exists(_))));
    }
}

/// The parts that a rank has of a matrix of 9 x 8, and of one of 6 x 10 behind it in the same buffer: cut by `columns`, and
/// each box by `ranges`.
fn boxed(columns: usize, ranges: usize, rank: usize) -> Vec<TensorPart> {
    let (column, range) = (rank / ranges, rank % ranges);
    let part = |tensor: &str, shape: &[usize]| {
        let at = |i: usize| shape[1] * i / columns;
        let bounds = TensorBox::whole(shape).narrow(1, at(column)..at(column + 1));
        let len = bounds.num_elements();
        let range = len * range / ranges..len * (range + 1) / ranges;
        TensorPart { tensor: tensor.into(), shape: shape.to_vec(), bounds, range }
    };
    vec![part("a", &[9, 8]), part("b", &[6, 10])]
}

#[test]
fn boxes_are_read_however_they_were_cut() {
    let values = |tensor: &str, shape: &[usize]| content(tensor, Dtype::F32, 0..shape[0] * shape[1], 3);
    let bytes_of = |parts: &[TensorPart]| -> Vec<u8> {
        let of_part = |part: &TensorPart| {
            let (all, mut bytes) = (values(&part.tensor, &part.shape), vec![0; 4 * part.len()]);
            for run in TensorPart::whole(&part.tensor, &part.shape).runs(part) {
                let (from, to, len) = (4 * run.from, 4 * run.to, 4 * run.len);
                bytes[to..to + len].copy_from_slice(&all[from..from + len]);
            }
            bytes
        };
        parts.iter().flat_map(of_part).collect()
    };
    let layouts = [(1, 1), (1, 3), (2, 1), (3, 2)];
    for (columns, ranges) in layouts {
        let root = tempfile::tempdir().unwrap();
        let world_size = columns * ranges;
        for rank in (0..world_size).rev() {
            let parts = boxed(columns, ranges, rank);
            let bytes = bytes_of(&parts);
            let shards = vec![Shard { name: "fused".into(), dtype: Dtype::F32, parts, bytes }];
            let (token, meta) = ("t".into(), serde_json::Value::Null);
            write(root.path(), &Snapshot { rank, world_size, token, meta, shards }, PATIENCE).unwrap();
        }
        complete(root.path()).unwrap();
        let checkpoint = Checkpoint::open(root.path()).unwrap();
        assert_eq!(checkpoint.rank_files().map(|(_, _, datasets)| datasets).sum::<usize>(), world_size);
        for (columns, ranges) in layouts {
            for rank in 0..columns * ranges {
                let parts = boxed(columns, ranges, rank);
                assert!(checkpoint.read_parts(&parts).unwrap() == bytes_of(&parts));
            }
        }
        let other = TensorPart::whole("a", &[8, 9]);
        let error = checkpoint.read_parts(&[other]).unwrap_err().to_string();
        assert_eq!(error, "tensor a: expected shape [8, 9], the checkpoint has [9, 8]");
    }
}

#[test]
fn hdf5_itself_reads_the_same_values_aligned_and_contiguous() {
    let root = tempfile::tempdir().unwrap();
    write_all(root.path(), 2, 1);
    // Between fork and exec a child of another test here holds the written file open, and with it HDF5's lock.
    let open = || hdf5_metno::File::open(root.path().join("rank_00001.h5"));
    let is_locked = |error: &hdf5_metno::Error| error.to_string().contains("lock");
    let mut file = open();
    for _ in 0..100 {
        if !file.as_ref().is_err_and(is_locked) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        file = open();
    }
    let file = file.unwrap();
    let dataset = file.dataset("optimizer/exp_avg/layers.0.qkv").unwrap();
    assert_eq!(dataset.offset().unwrap() % 4096, 0);
    assert!(!dataset.is_chunked() && dataset.filters().is_empty());
    let parts: hdf5_metno::types::VarLenUnicode = dataset.attr("parts").unwrap().read_scalar().unwrap();
    let parts: Vec<TensorPart> = serde_json::from_str(&parts).unwrap();
    assert_eq!((&parts[0].shape, &parts[0].range), (&vec![2000, 3000], &(3_000_000..6_000_000)));
    let values: Vec<u8> = dataset.read_raw::<f32>().unwrap().into_iter().flat_map(f32::to_le_bytes).collect();
    assert!(values == content("optimizer/exp_avg/layers.0.qkv", Dtype::F32, 3_000_000..6_000_000, 1));
    let bf16 = file.dataset("model/layers.0.qkv").unwrap();
    let dtype: hdf5_metno::types::VarLenUnicode = bf16.attr("dtype").unwrap().read_scalar().unwrap();
    assert_eq!(dtype.as_str(), "bf16");
    let values: Vec<u8> = bf16.read_raw::<u16>().unwrap().into_iter().flat_map(u16::to_le_bytes).collect();
    assert_eq!(values, content("model/layers.0.qkv", Dtype::Bf16, 3072..6144, 1));
}

#[test]
fn h5py_reads_the_same_values() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let has_h5py = Command::new(&python).args(["-c", "import h5py"]).stderr(Stdio::null()).status();
    if !has_h5py.is_ok_and(|s| s.success()) {
        eprintln!("skipped: {python} has no h5py");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    write_all(root.path(), 1, 1);
    let script = "import h5py, json, sys\nf = h5py.File(sys.argv[1])\nd = f['model/layers.0.qkv']\n\
                  assert d.attrs['dtype'] == 'bf16' and d.dtype == 'uint16'\n\
                  assert json.loads(d.attrs['parts'])[0]['shape'] == [96, 64]\n\
                  sys.stdout.buffer.write(d[()].tobytes())";
    let out =
        Command::new(&python).args(["-c", script]).arg(root.path().join("rank_00000.h5")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.stdout, content("model/layers.0.qkv", Dtype::Bf16, 0..6144, 1));
}

#[test]
fn damage_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("000001.e001");
    write_all(&dir, 2, 1);
    let path = dir.join("rank_00001.h5");
    let good = fs::read(&path).unwrap();
    let damaged = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let read =
            |name: &str| Checkpoint::open(&dir).and_then(|c| c.read(name, 0..c.tensor(name)?.num_elements()));
        let error = TENSORS.iter().find_map(|(name, ..)| read(name).err()).unwrap();
        assert_eq!(error.exit_code(), 65);
        assert!(error.to_string().contains("rank_00001.h5"), "{error}");
        error.to_string()
    };
    assert!(damaged(&good[..good.len() - 1]).contains("expected"));
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    assert!(damaged(&flipped).contains("dataset optimizer/exp_avg/layers.0.qkv"));
    fs::write(&path, &good).unwrap();
    check(&dir, 1);

    fs::write(
        dir.join("index.json"),
        fs::read_to_string(dir.join("index.json")).unwrap().replace("bf16", "u64"),
    )
    .unwrap();
    let error = Checkpoint::open(&dir).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }) && error.to_string().contains("index.json"), "{error}");
    fs::remove_file(dir.join("COMPLETE")).unwrap();
    assert!(matches!(Checkpoint::open(&dir), Err(Error::Incomplete(_))));
}

#[test]
fn ranks_that_do_not_fit_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let whole = |rank, shards| Snapshot {
        rank,
        world_size: 2,
        token: "t".into(),
        meta: serde_json::Value::Null,
        shards,
    };
    let part = |range: Range<usize>| range_of("w", Dtype::F32, &[8], range, 0);
    let mut round = 0;
    let mut error = |first: Vec<Shard>, second: Vec<Shard>| {
        round += 1;
        let dir = root.path().join(round.to_string());
        let _ = write(&dir, &whole(1, second), PATIENCE);
        let error = write(&dir, &whole(0, first), PATIENCE).unwrap_err().to_string();
        assert!(!dir.join("COMPLETE").exists());
        error
    };
    assert_eq!(error(vec![part(0..4)], vec![part(5..8)]), "tensor w: no rank has element 4 of 8");
    assert!(error(vec![part(0..4)], vec![Shard::whole("w", Dtype::F64, &[8], vec![0; 64])]).contains("F64"));
    let mut short = part(4..8);
    short.bytes.pop();
    let told = error(vec![part(0..4)], vec![short]);
    assert!(
        told.starts_with("rank 1 could not write its part") && told.contains("expected 16 bytes"),
        "{told}"
    );
    let late = write(&root.path().join("late"), &whole(0, vec![part(0..8)]), Duration::from_millis(100));
    assert!(matches!(late, Err(Error::Late { rank: 1, .. })));
}

#[test]
fn replicated_ranges_are_read_once() {
    let root = tempfile::tempdir().unwrap();
    let whole = |rank| Snapshot {
        rank,
        world_size: 2,
        token: "t".into(),
        meta: serde_json::Value::Null,
        shards: vec![Shard::whole("w", Dtype::U8, &[10], (0..10).collect())],
    };
    write(root.path(), &whole(1), PATIENCE).unwrap();
    write(root.path(), &whole(0), PATIENCE).unwrap();
    complete(root.path()).unwrap();
    let checkpoint = Checkpoint::open(root.path()).unwrap();
    assert_eq!(checkpoint.read("w", 3..9).unwrap(), [3, 4, 5, 6, 7, 8]);
    assert!(checkpoint.read("w", 3..11).is_err());
    assert!(matches!(checkpoint.read("v", 0..1), Err(Error::NoTensor { .. })));
}

#[test]
fn the_writer_thread_reports_and_lets_training_go_on() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(PATIENCE);
    let (first, second) = (root.path().join("000001.e001"), root.path().join("000002.e001"));
    assert_eq!(writer.submit(first.clone(), snapshot(0, 1, 1)).unwrap(), None);
    assert_eq!(writer.submit(second.clone(), snapshot(0, 1, 2)).unwrap(), Some(first.clone()));
    assert_eq!(writer.wait().unwrap(), Some(second.clone()));
    assert!(!writer.is_busy());
    complete(&first).unwrap();
    assert_eq!(
        checkpoints(root.path()).unwrap(),
        std::slice::from_ref(&first),
        "the writer thread completes nothing"
    );
    complete(&second).unwrap();
    check(&second, 2);
    writer.submit(second.clone(), snapshot(0, 1, 2)).unwrap();
    assert!(matches!(writer.wait(), Err(Error::Exists(_))));
    assert_eq!(prune(root.path(), 1).unwrap(), [first]);
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    // A file size limit of 8 MB (in blocks of 512 bytes) with its signal ignored is a disk that fills up.
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' XFSZ; ulimit -f 16000; exec \"$@\"", "sh"]);
    child.arg(std::env::current_exe().unwrap()).args(CHILD_ARGS).env("SLIME_TEST_ROOT", root.path());
    let out = child.env("SLIME_TEST_STEPS", "1").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("rank_00000.h5") && text.contains("exit code 74"), "{text}");
    assert!(text.contains("free disk space"), "{text}");
    let dir = root.path().join("000001.e001");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the temporary file is removed");
    assert_eq!(newest(root.path()).unwrap(), None);
}

#[test]
fn a_file_system_without_space_is_an_error_with_a_hint() {
    let root = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=8m tmpfs \"$SLIME_TEST_ROOT\" || exit 99; exec \"$@\"";
    let mut child = Command::new("unshare");
    child.args(["-m", "sh", "-c", mount, "sh"]);
    child.arg(std::env::current_exe().unwrap()).args(CHILD_ARGS).env("SLIME_TEST_ROOT", root.path());
    let out = child.env("SLIME_TEST_STEPS", "1").output();
    let Some(out) = out.ok().filter(|out| out.status.success()) else {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("No space left") && text.contains("exit code 74; free disk space"), "{text}");
}

#[test]
fn a_killed_writer_leaves_the_previous_checkpoint_whole() {
    let mut cut_off = 0;
    for round in 0..12 {
        let root = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(CHILD_ARGS)
            .env("SLIME_TEST_ROOT", root.path())
            .env("SLIME_TEST_STEPS", "1000")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines.by_ref().any(|line| line.unwrap().contains("complete 1")),
            "the first checkpoint is written"
        );
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let newest = newest(root.path()).unwrap().unwrap();
        check(&newest, 2);
        let all = fs::read_dir(root.path()).unwrap().count();
        cut_off += usize::from(all > checkpoints(root.path()).unwrap().len());
    }
    assert!(cut_off > 0, "no kill fell into a write: the test proves nothing");
}

const CHILD_ARGS: [&str; 5] = ["child_body", "--exact", "--ignored", "--nocapture", "--test-threads=1"];

/// Writes checkpoints one after the other until it is done, fails or is killed.
#[test]
#[ignore = "the body of a process that the tests above start"]
#[expect(clippy::print_stdout, reason = "a child reports to the test that started it")]
fn child_body() {
    let root = std::env::var_os("SLIME_TEST_ROOT").unwrap();
    let steps: u64 = std::env::var("SLIME_TEST_STEPS").unwrap().parse().unwrap();
    // Made before the first is written, so that the process spends its time in writing.
    let states = [snapshot(0, 1, 1), snapshot(0, 1, 2)];
    for step in 1..=steps {
        let dir = Path::new(&root).join(format!("{step:06}.e001"));
        if let Err(e) = write(&dir, &states[step as usize % 2], PATIENCE).and_then(|()| complete(&dir)) {
            println!("error: {e} (exit code {}; {})", e.exit_code(), e.hint().unwrap_or_default());
            return;
        }
        println!("complete {step}");
    }
}
