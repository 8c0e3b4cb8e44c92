//! How fast `slime-stat` opens a run of 10,000 steps and 5 million samples, against reading the same index files.
//!
//! `cargo bench --workspace --bench stat`; the system's temporary directory is the disk (1 GB of manifests are written).
#![allow(clippy::print_stdout, missing_docs)]

#[path = "../stat/synthetic.rs"]
mod synthetic;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use synthetic::Synthetic;

const NUM_STEPS: u64 = 10_000;
const REPEATS: u32 = 5;

fn main() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let run = folder.path().join("run");
    let synthetic = Synthetic {
        num_steps: NUM_STEPS,
        num_groups: 50,
        num_samples: 10,
        num_tokens: 200,
        segment_steps: (0..16).map(|at| at * (NUM_STEPS - 1) / 15).collect(),
        num_states: 40_000,
        ..Synthetic::default()
    };
    synthetic.write(&run);
    let num_samples = NUM_STEPS * u64::from(synthetic.num_groups * synthetic.num_samples);
    println!(
        "{NUM_STEPS} steps, {num_samples} samples, {:.1} MB of metrics",
        megabytes(&run.join("metrics"))
    );
    let report = folder.path().join("report.html");
    let csv = folder.path().join("steps.csv");
    let calls: [(&str, Vec<&str>); 4] = [
        ("table and curves", vec![]),
        ("--json", vec!["--json"]),
        ("--html", vec!["--html", report.to_str().expect("text")]),
        ("--export csv", vec!["--export", csv.to_str().expect("text")]),
    ];
    // By turns, so that what else runs on the machine disturbs all of them alike.
    let mut bytes = Vec::new();
    let mut times = vec![Vec::new(); calls.len()];
    for _ in 0..REPEATS {
        bytes.push(timed(|| read_all(&run.join("metrics"))));
        for ((_, more), times) in calls.iter().zip(&mut times) {
            times.push(timed(|| {
                let program = env!("CARGO_BIN_EXE_slime-stat");
                let output = Command::new(program).arg(&run).args(more).output().expect("it starts");
                assert!(output.status.success(), "{output:?}");
            }));
        }
    }
    let floor = median(&mut bytes);
    println!("{:<20} {:>8.3} s", "reading the bytes", floor.as_secs_f64());
    for ((name, _), times) in calls.iter().zip(&mut times) {
        let time = median(times);
        let ratio = time.as_secs_f64() / floor.as_secs_f64();
        println!("{name:<20} {:>8.3} s  {ratio:>6.1} x the bytes", time.as_secs_f64());
    }
    println!("the page has {:.2} MB", fs::metadata(&report).expect("it was written").len() as f64 / 1e6);
}

fn timed(call: impl FnOnce()) -> Duration {
    let start = Instant::now();
    call();
    start.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn files(folder: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path())
}

fn read_all(folder: &Path) {
    let num_bytes: usize = files(folder).map(|path| fs::read(path).expect("readable").len()).sum();
    assert!(std::hint::black_box(num_bytes) > 0);
}

fn megabytes(folder: &Path) -> f64 {
    files(folder).map(|path| fs::metadata(path).expect("readable").len()).sum::<u64>() as f64 / 1e6
}
