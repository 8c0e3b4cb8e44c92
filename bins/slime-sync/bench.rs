//! Measures the ways of the weights on this machine, each beside what the same bytes cost by the same path without it.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use slime_cli::{Failure, exit};
use slime_config::{Sync, SyncTransport};
use slime_transport::measure::{Timed, measure, plain_copies, plain_write_and_read};
use slime_weights::{Dtype, TensorSpec};

use crate::args::Bench;
use crate::failure;

/// The largest tensor, in units of 2^20 bytes.
const MAX_TENSOR_MB: u64 = 16;
/// One value in so many changes between versions by one unit in the last place, as after a step at a learning rate of 1e-6.
const CHANGE_EVERY: usize = 100;

/// `slime-sync bench`.
pub fn bench(args: &Bench) -> Result<(), Failure> {
    let ways = match &args.transport {
        Some(name) => vec![SyncTransport::from_name(name).ok_or_else(|| {
            Failure::usage(format!("--transport: expected disk, delta or shm, got {name}"))
        })?],
        None => SyncTransport::ALL.to_vec(),
    };
    let tensor_mb = args.size_mb.min(MAX_TENSOR_MB);
    let tensors = 0..args.size_mb.div_ceil(tensor_mb) as usize;
    let mut weights: Vec<Vec<u8>> = tensors.map(|index| tensor(index, (tensor_mb as usize) << 20)).collect();
    let spec = |(index, bytes): (usize, &Vec<u8>)| TensorSpec {
        name: format!("tensor.{index}"),
        dtype: Dtype::BF16,
        shape: vec![bytes.len() / 2],
    };
    let specs: Vec<TensorSpec> = weights.iter().enumerate().map(spec).collect();
    let root = temporary(&args.dir)?;
    let mut held = weights.clone();
    let num_bytes: usize = weights.iter().map(Vec::len).sum();
    let rate = |time: Duration| num_bytes as f64 / time.as_secs_f64() / 1e9;
    print("transport\tsend GB/s\tof the ceiling\treceive GB/s\tof the ceiling\tbytes sent")?;
    for transport in ways {
        let config =
            Sync { transport, full_interval: u64::MAX, memory_dir: args.memory_dir.display().to_string() };
        let run = root.path().join(transport.as_str());
        let mut ceilings = Vec::new();
        let mut timed = Vec::new();
        for repeat in 0..args.repeats {
            // By turns, so that what else runs on the machine disturbs both alike.
            ceilings.push(ceiling(transport, &root, &weights, &mut held)?);
            let run = run.with_extension(repeat.to_string());
            let found = measure(&run, &config, &specs, &mut weights, 1, &mut change);
            timed.extend(found.map_err(failure)?);
        }
        let (write, read) = (middle(ceilings.iter().map(|c| c.0)), middle(ceilings.iter().map(|c| c.1)));
        let send = middle(timed.iter().map(|timed| timed.send));
        let receive = middle(timed.iter().map(|timed| timed.receive + timed.load));
        let part = |ceiling: Duration, time: Duration| ceiling.as_secs_f64() / time.as_secs_f64();
        let sent = timed.first().map_or(0, |timed: &Timed| timed.num_bytes);
        print(&format!(
            "{}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{sent}",
            transport.as_str(),
            rate(send),
            part(write, send),
            rate(receive),
            part(read, receive),
        ))?;
    }
    Ok(())
}

/// What sending and taking whole versions cost without a way: plain writes and reads of the disk, or copies in memory.
fn ceiling(
    transport: SyncTransport,
    root: &tempfile::TempDir,
    weights: &[Vec<u8>],
    held: &mut [Vec<u8>],
) -> Result<(Duration, Duration), Failure> {
    if transport == SyncTransport::Shm {
        let (into_held, _) = plain_copies(weights, held);
        return Ok((into_held, into_held));
    }
    plain_write_and_read(root.path(), weights).map_err(failure)
}

/// Tensor `index`, of values that do not repeat.
fn tensor(index: usize, num_bytes: usize) -> Vec<u8> {
    let value = |at: usize| (((index << 24) | at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (0..num_bytes / 2).flat_map(|at| (value(at) as u16).to_le_bytes()).collect()
}

/// What a training step changes.
fn change(weights: &mut [Vec<u8>]) {
    for value in
        weights.iter_mut().flat_map(|bytes| bytes.as_chunks_mut::<2>().0.iter_mut().step_by(CHANGE_EVERY))
    {
        *value = u16::from_le_bytes(*value).wrapping_add(1).to_le_bytes();
    }
}

fn middle(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn temporary(dir: &PathBuf) -> Result<tempfile::TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("slime-bench-").tempdir_in(dir);
    made.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(exit::NO_INPUT, format!("{}: {error}", dir.display())),
        _ => Failure::create(dir.display(), &error),
    })
}

fn print(line: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::io("stdout", &error))
}
