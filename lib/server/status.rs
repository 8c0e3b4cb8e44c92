//! Numbers both sides see: what the engine holds, and counters for `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use slime_engine::{Load, Usage};

/// Upper bounds of the buckets of times, in seconds.
const BOUNDS_S: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// What never changes while a server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Tokens of a prompt and its response.
    pub context_len: usize,
    /// Token slots of the cache.
    pub num_slots: usize,
    /// Samples computed at once.
    pub max_num_seqs: usize,
}

/// The state of a server.
#[derive(Debug)]
pub struct Status {
    /// What never changes.
    pub limits: Limits,
    load: Mutex<(Load, Usage)>,
    /// Samples that clients wait for.
    pub num_unfinished: AtomicUsize,
    /// Loops of the engine's thread that computed something.
    pub num_steps: AtomicU64,
    /// Nothing is computed at the moment.
    pub is_paused: AtomicBool,
    /// No new request is taken.
    pub is_draining: AtomicBool,
    /// The engine's thread has ended.
    pub is_dead: AtomicBool,
    weight_version: RwLock<String>,
    /// Answers by route and status.
    answers: Mutex<BTreeMap<(String, u16), u64>>,
    /// Tokens of prompts that were taken.
    pub num_prompt_tokens: AtomicU64,
    /// Of them those the cache had.
    pub num_cached_tokens: AtomicU64,
    /// Samples ended by a client or its going.
    pub num_aborted: AtomicU64,
    /// From a request's arrival to its first token.
    pub first_token: Histogram,
    /// From a request's arrival to its last token.
    pub whole: Histogram,
}

impl Status {
    /// A server with these limits and weights of that name.
    pub fn new(limits: Limits, weight_version: &str) -> Self {
        Self {
            limits,
            load: Mutex::default(),
            num_unfinished: AtomicUsize::new(0),
            num_steps: AtomicU64::new(0),
            is_paused: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            weight_version: RwLock::new(weight_version.to_owned()),
            answers: Mutex::default(),
            num_prompt_tokens: AtomicU64::new(0),
            num_cached_tokens: AtomicU64::new(0),
            num_aborted: AtomicU64::new(0),
            first_token: Histogram::default(),
            whole: Histogram::default(),
        }
    }

    /// What the engine holds and has done.
    pub fn load(&self) -> (Load, Usage) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_load(&self, load: Load, usage: Usage) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = (load, usage);
    }

    /// What the weights are called.
    pub fn weight_version(&self) -> String {
        self.weight_version.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_weight_version(&self, name: &str) {
        name.clone_into(&mut self.weight_version.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts an answer.
    pub fn answered(&self, route: &str, status: u16) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((route.to_owned(), status)).or_default() += 1;
    }

    /// Everything in Prometheus' text format, version 0.0.4.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let (load, usage) = self.load();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let flag = |flag: &AtomicBool| f64::from(u8::from(flag.load(Ordering::Relaxed)));
        let unfinished = self.num_unfinished.load(Ordering::Relaxed) as f64;
        for (name, kind, help, value) in [
            ("num_running", "gauge", "samples that are being computed", load.num_running as f64),
            ("num_waiting", "gauge", "samples that wait for room", load.num_waiting as f64),
            ("num_unfinished", "gauge", "samples that clients wait for", unfinished),
            ("kv_used", "gauge", "share of the KV blocks in use", load.kv_used),
            ("paused", "gauge", "1 while nothing is computed", flag(&self.is_paused)),
            ("steps_total", "counter", "forward passes", usage.num_steps as f64),
            (
                "computed_tokens_total",
                "counter",
                "tokens through the model",
                usage.num_computed_tokens as f64,
            ),
            ("generated_tokens_total", "counter", "tokens sampled", usage.num_sampled_tokens as f64),
            (
                "preemptions_total",
                "counter",
                "samples put back for want of blocks",
                usage.num_preemptions as f64,
            ),
            ("prompt_tokens_total", "counter", "tokens of prompts", count(&self.num_prompt_tokens)),
            ("cached_tokens_total", "counter", "of them those the cache had", count(&self.num_cached_tokens)),
            ("aborted_total", "counter", "samples ended by a client or its going", count(&self.num_aborted)),
        ] {
            let name = format!("slime_serve_{name}");
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}")
                .expect("a string grows");
        }
        let name = "slime_serve_answers_total";
        writeln!(text, "# HELP {name} answers by route and status\n# TYPE {name} counter")
            .expect("a string grows");
        for ((route, status), count) in self.answers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            writeln!(text, "{name}{{route=\"{route}\",status=\"{status}\"}} {count}")
                .expect("a string grows");
        }
        self.first_token.write(&mut text, "slime_serve_first_token_seconds", "arrival to first token");
        self.whole.write(&mut text, "slime_serve_request_seconds", "arrival to last token");
        text
    }
}

/// Times in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Adds a time in seconds.
    pub fn add(&self, time_s: f64) {
        let bucket = BOUNDS_S.iter().take_while(|bound| **bound < time_s).count();
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add((time_s * 1e6) as u64, Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram").expect("a string grows");
        let mut count = 0;
        let bounds = BOUNDS_S.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, in_bucket) in bounds.zip(&self.counts) {
            count += in_bucket.load(Ordering::Relaxed);
            writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}").expect("a string grows");
        }
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        writeln!(text, "{name}_sum {sum}\n{name}_count {count}").expect("a string grows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_counts_answers_and_times_in_cumulative_buckets() {
        let limits = Limits { vocab_size: 1, context_len: 1, num_slots: 1, max_num_seqs: 1 };
        let status = Status::new(limits, "7");
        status.answered("/generate", 200);
        status.answered("/generate", 200);
        for time_s in [0.001, 0.005, 0.3, 1e4] {
            status.whole.add(time_s);
        }
        let text = status.prometheus();
        for line in [
            "slime_serve_answers_total{route=\"/generate\",status=\"200\"} 2",
            "slime_serve_request_seconds_bucket{le=\"0.005\"} 2",
            "slime_serve_request_seconds_bucket{le=\"0.5\"} 3",
            "slime_serve_request_seconds_bucket{le=\"300\"} 3",
            "slime_serve_request_seconds_bucket{le=\"+Inf\"} 4",
            "slime_serve_request_seconds_count 4",
            "# TYPE slime_serve_kv_used gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
        }
    }
}
