//! How fast segments are written, sealed to disk and read, against `memcpy` and the disk alone with the same bytes.
//!
//! `cargo bench -p slime-exchange --bench segments`; the system's temporary directory is the disk.
#![allow(clippy::print_stdout, missing_docs)]

use slime_exchange::{ArrowFormat, Format, FsStore, SegmentHeader, Store};
use slime_record::{Buffer, Provenance, Sample, VersionRun, decode_segment, encode_segment};
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

const NUM_SAMPLES: u32 = 2048;
const PROMPT_LEN: u32 = 256;
const RESPONSE_LEN: u32 = 2048;
const REPEATS: u32 = 7;

fn main() {
    let samples = samples();
    let provenance = Provenance { tool: "bench".to_owned(), ..Provenance::default() };
    let encoded = || encode_segment(&samples, &provenance).expect("the samples are valid");
    let file = encoded();
    let buffer = Buffer::from_vec(file.clone());
    let segment = decode_segment(buffer.clone()).expect("an unbroken segment");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let seal = |bytes: &[u8]| {
        let mut out = std::fs::File::create(dir.path().join(".tmp")).expect("a file");
        out.write_all(bytes).expect("room on the disk");
        out.sync_all().expect("a disk that syncs");
        std::fs::rename(dir.path().join(".tmp"), dir.path().join("segment.arrow")).expect("a rename");
    };
    let mut store = FsStore::open(dir.path().join("run")).expect("a folder");
    let format = ArrowFormat { provenance: provenance.clone() };
    let header = SegmentHeader { step: 0, epoch: 1, replica: 0, incarnation: 1 };
    let (megabytes, len) = (file.len() as f64 / 1e6, samples.len());
    println!("{len} samples of {PROMPT_LEN} + {RESPONSE_LEN} tokens, {megabytes:.1} MB");

    // By turns, so that what else runs on the machine disturbs all of them alike.
    let mut times: [Vec<Duration>; 7] = Default::default();
    let mut copy = file.clone();
    for _ in 0..REPEATS {
        let seconds = [
            timed(|| drop(black_box(file.clone()))),
            timed(|| drop(black_box(encoded()))),
            timed(|| seal(&file)),
            timed(|| {
                store
                    .seal_with("segment.arrow", &mut |out| format.write(&header, &samples, out))
                    .expect("room on the disk");
            }),
            timed(|| black_box(&mut copy).copy_from_slice(&file)),
            timed(|| drop(black_box(decode_segment(buffer.clone()).expect("an unbroken segment")))),
            timed(|| {
                let tokens: u64 = segment
                    .views()
                    .map(|view| view.tokens().iter().map(|&t| u64::from(t)).sum::<u64>())
                    .sum();
                let log_probs: f32 =
                    segment.views().map(|view| view.rollout_log_probs().iter().sum::<f32>()).sum();
                black_box((tokens, log_probs));
            }),
        ];
        times.iter_mut().zip(seconds).for_each(|(times, seconds)| times.push(seconds));
    }
    let [clone, encode, disk, write, copy, open, sum] = times;
    report("encode against memcpy into new memory:", &encode, &clone);
    report("encode, write, fsync, rename against the disk alone:", &write, &disk);
    report("open with checksum against memcpy into old memory:", &open, &copy);
    report("sum of tokens and log-probs in place against memcpy:", &sum, &copy);
}

fn samples() -> Vec<Sample> {
    (0..NUM_SAMPLES)
        .map(|index| Sample {
            index,
            prompt_id: format!("prompt-{index}"),
            prompt: format!("\"{}\"", "word ".repeat(PROMPT_LEN as usize)),
            response: "word ".repeat(RESPONSE_LEN as usize),
            tokens: (0..PROMPT_LEN + RESPONSE_LEN).map(|t| t.wrapping_mul(2_654_435_761) >> 15).collect(),
            prompt_len: PROMPT_LEN,
            loss_mask: vec![1; RESPONSE_LEN as usize],
            rollout_log_probs: (0..RESPONSE_LEN).map(|t| -(t as f32) / 4096.0).collect(),
            weight_versions: vec![VersionRun { version: 1, len: RESPONSE_LEN }],
            ..Sample::default()
        })
        .collect()
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The median over the repetitions of how fast `ours` is beside `ceiling`.
fn report(what: &str, ours: &[Duration], ceiling: &[Duration]) {
    let mut ratios: Vec<f64> =
        ours.iter().zip(ceiling).map(|(ours, ceiling)| ceiling.as_secs_f64() / ours.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    println!("{what:58} {:4.0} %", ratios[ratios.len() / 2] * 100.0);
}
