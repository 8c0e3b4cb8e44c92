//! The output head: log-probs and entropy of targets with gradients in hidden states and weight, by turns in both of our
//! forms, in libtorch's plain way (all logits, `log_softmax` in f32, entropy, autograd) and as the bare matrix products.
//!
//! `cargo bench --workspace --bench head` on the CPU, on the GPU where there is one (`tests/gpu/head.sh` runs it with the
//! libraries it needs). `HEAD_ROWS`, `HEAD_VOCAB`, `HEAD_DIM`, `REPEATS` and `OMP_NUM_THREADS` change the sizes;
//! `REPEATS=0` measures memory alone.
//! `SLIME_BENCH_PYTHON` names a Python with torch and liger-kernel for the rival on a GPU, which has no entropy.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "rival/mod.rs"]
mod rival;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rival::{Rival, Seconds, median, report, setting, timed};
use slime_model::ops::head_log_probs::{Fused, Rows, Shaping, Slopes, fused, reference, train};
use slime_torch::cuda;
use tch::{Device, Kind, Tensor};

/// Of the entropy in the loss.
const ENTROPY_COEF: f64 = -0.01;

struct Bench {
    hidden_rd: Tensor,
    weight_vd: Tensor,
    targets_r: Tensor,
    /// Of the log-probs in the loss, as advantages over the number of tokens.
    factors_r: Tensor,
}

impl Bench {
    fn new([rows, vocab, dim]: [i64; 3], kind: Kind, device: Device) -> Self {
        let random = |size: [i64; 2], scale: f64| {
            let values = Tensor::randn(size, (Kind::Float, device)) * scale;
            values.to_kind(kind).set_requires_grad(true)
        };
        Self {
            hidden_rd: random([rows, dim], 1.0),
            weight_vd: random([vocab, dim], 2.0 / (dim as f64).sqrt()),
            targets_r: Tensor::randint(vocab, [rows], (Kind::Int64, device)),
            factors_r: Tensor::randn([rows], (Kind::Float, device)) / rows as f64,
        }
    }

    fn gradients(&self, loss: &Tensor) -> Vec<Tensor> {
        Tensor::run_backward(&[loss], &[&self.hidden_rd, &self.weight_vd], false, false)
    }

    fn of(&self, (log_probs_r, entropy_r): (Tensor, Tensor)) -> Vec<Tensor> {
        let rows = self.hidden_rd.size()[0] as f64;
        let loss = (log_probs_r * &self.factors_r).sum(None) + entropy_r.sum(None) * (ENTROPY_COEF / rows);
        self.gradients(&loss)
    }

    fn plain(&self) -> Vec<Tensor> {
        let logits_rv = self.hidden_rd.linear(&self.weight_vd, None::<&Tensor>).to_kind(Kind::Float);
        let log_softmax_rv = logits_rv.log_softmax(-1, None::<Kind>);
        let log_probs_r = log_softmax_rv.gather(1, &self.targets_r.unsqueeze(1), false).squeeze_dim(1);
        let entropy_r = -(log_softmax_rv.exp() * &log_softmax_rv).sum_dim_intlist(-1, false, None::<Kind>);
        self.of((log_probs_r, entropy_r))
    }

    fn chunked(&self) -> Vec<Tensor> {
        self.of(train(&self.hidden_rd, &self.weight_vd, &self.targets_r, &Shaping::at(1.0)).unwrap())
    }

    fn fused(&self) -> Vec<Tensor> {
        let rows = self.hidden_rd.size()[0] as f64;
        let mut slopes = |chunk: Rows<'_>| {
            let factors_r = self.factors_r.narrow(0, chunk.start, chunk.log_probs_r.size()[0]);
            let of_entropy_r = factors_r.full_like(ENTROPY_COEF / rows);
            let loss = (chunk.log_probs_r * &factors_r + chunk.entropy_r * &of_entropy_r).sum(None);
            Ok::<_, slime_model::Error>(Slopes {
                loss,
                log_probs_r: factors_r,
                entropy_r: Some(of_entropy_r),
            })
        };
        let shaping = (&Shaping::at(1.0), None);
        let Fused { loss, .. } =
            fused(&self.hidden_rd, &self.weight_vd, &self.targets_r, shaping, &mut slopes).unwrap();
        self.gradients(&loss)
    }

    fn run(&self, way: &str) -> Vec<Tensor> {
        match way {
            "chunked" => self.chunked(),
            "fused" => self.fused(),
            _ => self.plain(),
        }
    }

    /// The three products that no way does without; their results are dropped one by one.
    fn products(&self) {
        let (hidden_rd, weight_vd) = (self.hidden_rd.detach(), self.weight_vd.detach());
        let logits_rv = hidden_rd.matmul(&weight_vd.tr());
        drop(logits_rv.matmul(&weight_vd));
        drop(logits_rv.tr().matmul(&hidden_rd));
    }

    /// How far the gradients of both forms are from those of the definition in f32, of their norm.
    fn check(&self) {
        let wide = |x: &Tensor| x.detach().to_kind(Kind::Float).set_requires_grad(true);
        let few = |x: &Tensor| x.narrow(0, 0, x.size()[0].min(512)).detach();
        let part = Self {
            hidden_rd: few(&self.hidden_rd).set_requires_grad(true),
            weight_vd: self.weight_vd.detach().set_requires_grad(true),
            targets_r: few(&self.targets_r),
            factors_r: few(&self.factors_r),
        };
        let exact = Self {
            hidden_rd: wide(&part.hidden_rd),
            weight_vd: wide(&part.weight_vd),
            targets_r: part.targets_r.shallow_clone(),
            factors_r: part.factors_r.shallow_clone(),
        };
        let outputs =
            reference(&exact.hidden_rd, &exact.weight_vd, &exact.targets_r, &Shaping::at(1.0)).unwrap();
        let want = exact.of(outputs);
        for (name, got) in [("chunked", part.chunked()), ("fused", part.fused()), ("plain", part.plain())] {
            let errors: Vec<String> = got
                .iter()
                .zip(&want)
                .map(|(got, want)| {
                    let error = (got.to_kind(Kind::Float) - want).norm().double_value(&[]);
                    format!("{:.1e}", error / want.norm().double_value(&[]))
                })
                .collect();
            println!("{name}: gradients off by {} of their norm", errors.join(" and "));
        }
    }
}

/// The ways whose memory is measured.
const WAYS: [&str; 3] = ["chunked", "fused", "plain"];
/// Asks a process of this bench for the memory of one way: `WAY ROWS VOCAB DIM`.
const MEMORY_OF: &str = "HEAD_MEMORY_OF";

/// Bytes that a way needs at most beyond what is there, gradients included. On a GPU a process of its own without
/// libtorch's caching allocator does it, and another thread looks at the free memory meanwhile.
fn peak_bytes(bench: &Bench, way: &str, [rows, vocab, dim]: [i64; 3], device: Device) -> u64 {
    if device.is_cuda() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .env(MEMORY_OF, format!("{way} {rows} {vocab} {dim}"))
            .env("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
            .output()
            .unwrap();
        return String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    }
    // What the system moved out to disk is memory too, of which it keeps no peak.
    let (before, is_done) = (status("VmRSS:") + status("VmSwap:"), AtomicBool::new(false));
    // proc(5): 5 sets the peak back to what is resident now.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let peak = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !is_done.load(Ordering::Relaxed) {
                peak = peak.max(status("VmRSS:") + status("VmSwap:"));
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        drop(bench.run(way));
        is_done.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    peak.max(status("VmHWM:")) - before
}

/// A size of this process, in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The process that [`peak_bytes`] starts.
fn print_memory(asked: &str) {
    cuda::open().unwrap();
    let words: Vec<&str> = asked.split(' ').collect();
    let size: Vec<i64> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
    let warm = Bench::new([64, 512, 64], Kind::BFloat16, Device::Cuda(0));
    drop(warm.run(words[0]));
    let bench = Bench::new([size[0], size[1], size[2]], Kind::BFloat16, Device::Cuda(0));
    tch::Cuda::synchronize(0);
    let used = || {
        let (free, total) = slime_cuda::Device::open(0).unwrap().memory().unwrap();
        (total - free) as u64
    };
    let (before, is_done) = (used(), AtomicBool::new(false));
    let peak = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !is_done.load(Ordering::Relaxed) {
                peak = used().max(peak);
            }
            peak
        });
        drop(bench.run(words[0]));
        tch::Cuda::synchronize(0);
        is_done.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    println!("{}", peak.saturating_sub(before));
}

fn measure(size: [i64; 3], kind: Kind, device: Device, repeats: usize) {
    let [rows, vocab, dim] = size;
    println!("--- {rows} tokens x {vocab} ids, hidden size {dim}, {kind:?} on {device:?}");
    let bench = Bench::new(size, kind, device);
    let threads = tch::get_num_threads();
    let job = format!(r#"{{"rows": {rows}, "vocab": {vocab}, "dim": {dim}}}"#);
    let mut rival = device.is_cuda().then(|| Rival::start("rival_head.py", threads, &job)).flatten();
    let on_device = |work: &dyn Fn()| {
        timed(|| {
            work();
            if let Device::Cuda(number) = device {
                tch::Cuda::synchronize(number as i64);
            }
        })
    };
    let chunked = || drop(bench.chunked());
    let fused = || drop(bench.fused());
    let plain = || drop(bench.plain());
    let products = || bench.products();
    on_device(&|| drop(tch::no_grad(|| bench.hidden_rd.matmul(&bench.weight_vd.tr().narrow(1, 0, 8)))));
    let peaks = WAYS.map(|way| peak_bytes(&bench, way, size, device));
    for (name, peak) in WAYS.into_iter().zip(peaks) {
        println!(
            "{name}: at most {:.3} GB, 1/{:.1} of the plain way",
            peak as f64 / 1e9,
            peaks[2] as f64 / peak as f64
        );
    }
    if repeats == 0 {
        return;
    }
    bench.check();
    let mut times: [Vec<Seconds>; 5] = std::array::from_fn(|_| Vec::new());
    for _ in 0..repeats {
        for (times, work) in times.iter_mut().zip([&chunked as &dyn Fn(), &fused, &plain, &products]) {
            times.push(on_device(work));
        }
        times[4].extend(rival.as_mut().map(Rival::run));
    }
    let [chunked, fused, plain, products, theirs] = times;
    let flops = 6.0 * rows as f64 * vocab as f64 * dim as f64;
    println!("bare products: {:.3} TFLOP/s", flops / median(&products).wall / 1e12);
    report("chunked against libtorch's plain way:", &chunked, &plain);
    report("chunked against its bare products (three):", &chunked, &products);
    report("fused against libtorch's plain way:", &fused, &plain);
    report("fused against its bare products:", &fused, &products);
    if !theirs.is_empty() {
        report("chunked against Liger (no entropy):", &chunked, &theirs);
        report("fused against Liger (no entropy):", &fused, &theirs);
    }
}

fn main() {
    let size =
        |rows, dim| [setting("HEAD_ROWS", rows), setting("HEAD_VOCAB", 151_936), setting("HEAD_DIM", dim)];
    if let Ok(asked) = std::env::var(MEMORY_OF) {
        return print_memory(&asked);
    }
    match cuda::open() {
        Ok(()) => {
            for dim in [1024, 4096] {
                measure(size(16_384, dim), Kind::BFloat16, Device::Cuda(0), setting("REPEATS", 7));
            }
        }
        Err(error) => {
            println!("on the CPU: {error}");
            let threads = std::thread::available_parallelism().unwrap().get() as i32;
            tch::set_num_threads(setting("OMP_NUM_THREADS", threads));
            measure(size(1024, 1024), Kind::Float, Device::Cpu, setting("REPEATS", 3));
        }
    }
}
