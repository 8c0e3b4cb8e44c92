//! How fast segments are written, sealed to disk and read, against `memcpy` of the same bytes.
//!
//! `cargo bench -p slime-record --bench segments`. No threshold: the numbers go to standard error.

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
    let mb = file.len() as f64 / 1e6;
    report("samples", &format!("{NUM_SAMPLES} of {PROMPT_LEN} + {RESPONSE_LEN} tokens, {mb:.1} MB"));

    let copy = best(|| drop(black_box(file.clone())));
    report_rate("memcpy", mb, copy, copy);
    report_rate("write (encode)", mb, best(|| drop(black_box(encoded()))), copy);

    let dir = tempfile::tempdir().expect("a temporary directory");
    let seal = best(|| {
        let mut out = std::fs::File::create(dir.path().join(".tmp")).expect("a file");
        out.write_all(&file).expect("room on the disk");
        out.sync_all().expect("a disk that syncs");
        std::fs::rename(dir.path().join(".tmp"), dir.path().join("segment.arrow")).expect("a rename");
    });
    report_rate("seal (write, fsync, rename)", mb, seal, copy);

    let buffer = Buffer::from_vec(file);
    let open = best(|| drop(black_box(decode_segment(buffer.clone()).expect("an unbroken segment"))));
    report_rate("read (open, checksum)", mb, open, copy);
    let segment = decode_segment(buffer).expect("an unbroken segment");
    let views = best(|| {
        let tokens: u64 =
            segment.views().map(|view| view.tokens().iter().map(|&t| u64::from(t)).sum::<u64>()).sum();
        let log_probs: f32 = segment.views().map(|view| view.rollout_log_probs().iter().sum::<f32>()).sum();
        black_box((tokens, log_probs));
    });
    report_rate("read (sum tokens, log-probs)", mb, views, copy);
    report_rate("read (copy out)", mb, best(|| drop(black_box(segment.samples()))), copy);
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

fn best(mut work: impl FnMut()) -> Duration {
    let timed = (0..REPEATS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    timed.min().unwrap_or_default()
}

fn report_rate(what: &str, mb: f64, took: Duration, copy: Duration) {
    let (seconds, copies) = (took.as_secs_f64(), took.as_secs_f64() / copy.as_secs_f64());
    let (ms, gb_per_s) = (seconds * 1e3, mb / 1e3 / seconds);
    report(what, &format!("{ms:9.2} ms  {gb_per_s:6.2} GB/s  {copies:6.2} x memcpy"));
}

fn report(what: &str, text: &str) {
    eprintln!("{what:30} {text}");
}
