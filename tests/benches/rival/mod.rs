//! A program in another language that does the same work, run by turns with ours.
#![allow(dead_code, reason = "each bench uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Seconds of one repetition: on the clock, and of all threads of the process on a CPU.
#[derive(Debug, Clone, Copy)]
pub struct Seconds {
    pub wall: f64,
    pub cpu: f64,
}

/// A Python script that says `ready`, then answers each line `run` with its seconds on the clock and on the CPU.
pub struct Rival {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Rival {
    /// Starts `script` of this folder with the Python that `SLIME_BENCH_PYTHON` names (else `python3`), which reads `job`
    /// from its first line; `SLIME_BENCHES` is the folder where this source is not there. `None`, with the reason on standard
    /// output, where it cannot run.
    pub fn start(script: &str, threads: i32, job: &str) -> Option<Self> {
        let python = std::env::var("SLIME_BENCH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let folder = std::env::var_os("SLIME_BENCHES").map(PathBuf::from);
        let built_in = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/benches");
        let path = folder.unwrap_or_else(built_in).join(script);
        let mut child = Command::new(&python)
            .arg(path)
            .env("OMP_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| println!("rival skipped: {python}: {error}"))
            .ok()?;
        let (stdin, stdout) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut rival = Self { child, stdin, stdout };
        match rival.ask(job).as_deref() {
            Some("ready") => Some(rival),
            answer => {
                println!("rival skipped: {python} says {}", answer.unwrap_or("nothing"));
                None
            }
        }
    }

    fn ask(&mut self, line: &str) -> Option<String> {
        writeln!(self.stdin, "{line}").ok()?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).ok()?;
        Some(answer.trim().to_owned())
    }

    /// One repetition.
    pub fn run(&mut self) -> Seconds {
        let answer = self.ask("run").unwrap_or_default();
        let numbers: Vec<f64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [wall, cpu] = numbers[..] else { panic!("the rival answers {answer:?}") };
        Seconds { wall, cpu }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU seconds of all threads of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // Fields 14 and 15 of proc(5), in ticks of 10 ms.
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Times `work`.
pub fn timed(work: impl FnOnce()) -> Seconds {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    work();
    Seconds { wall: start.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu }
}

/// The medians of the clock and of the CPU.
pub fn median(seconds: &[Seconds]) -> Seconds {
    let middle = |part: fn(&Seconds) -> f64| {
        let mut sorted: Vec<f64> = seconds.iter().map(part).collect();
        sorted.sort_by(f64::total_cmp);
        f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
    };
    Seconds { wall: middle(|s| s.wall), cpu: middle(|s| s.cpu) }
}

/// One line: how many times as fast as `other` the work `ours` is, repetition by repetition (the median of the ratios), on
/// the clock and by CPU time, which other programs on the machine disturb less.
pub fn report(what: &str, ours: &[Seconds], other: &[Seconds]) {
    let ratio = |part: fn(&Seconds) -> f64| {
        let mut ratios: Vec<f64> = ours.iter().zip(other).map(|(a, b)| part(b) / part(a)).collect();
        ratios.sort_by(f64::total_cmp);
        f64::midpoint(ratios[(ratios.len() - 1) / 2], ratios[ratios.len() / 2])
    };
    println!("{what:58} {:5.2} times on the clock, {:5.2} by CPU time", ratio(|s| s.wall), ratio(|s| s.cpu));
}

/// The value of the environment variable `name`, else `default`.
pub fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
