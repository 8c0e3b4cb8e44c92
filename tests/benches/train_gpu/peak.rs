//! The most memory that a training step takes, beside the plan.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slime_comm::Single;
use slime_torch::cuda;
use slime_trainer::Trainer;
use slime_trainer::budget::{Batch, Budget, Others, Site};
use slime_weights::PlanLayout;

use super::{NUM_TOKENS, model, recompute_of, samples, settings, shape};

/// Asks a process of this bench for the memory of a step: `SHAPE BATCH RECOMPUTE`.
pub const OF: &str = "TRAIN_MEMORY_OF";

/// Measured in a process of its own without libtorch's caching allocator, so that what is freed is free.
pub fn tell(name: &str, batch: &str, recompute: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .env(OF, format!("{name} {batch} {recompute}"))
        .env("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some(measured) = text.trim().parse::<f64>().ok() else {
        println!("memory of {name}: {text}{}", String::from_utf8_lossy(&output.stderr));
        return;
    };
    let settings = settings(recompute_of(recompute));
    let site = Site { layout: PlanLayout::SINGLE, is_bf16: true, is_gpu: true };
    let longest = samples(batch).into_iter().max_by_key(|scored| scored.sample.tokens.len()).unwrap().sample;
    let [prompt_len, response_len] = [longest.prompt_len as u64, longest.response_len() as u64];
    let (name_of_batch, batch) = (batch, Batch { tokens: NUM_TOKENS as u64, prompt_len, response_len });
    let stages = Budget::of_stages(&shape(name), &settings, site, batch, Others::default()).unwrap();
    let budget = stages.first().unwrap();
    println!("{}", budget.lines(&settings, site, batch).join("\n"));
    let planned = budget.device_bytes(true) as f64;
    println!(
        "memory of {name}, {name_of_batch}, recompute {recompute}: planned {:.2} GB, measured {:.2} GB: {:.3}",
        planned / 1e9,
        measured / 1e9,
        planned / measured
    );
}

/// The process that [`tell`] starts: bytes at the peak of two steps beyond those of a step that was tiny.
pub fn print(asked: &str) {
    cuda::open().unwrap();
    let words: Vec<&str> = asked.split(' ').collect();
    let (name, batch, settings) = (words[0], words[1], settings(recompute_of(words[2])));
    let used = || {
        let (free, total) = slime_cuda::Device::open(0).unwrap().memory().unwrap();
        (total - free) as u64
    };
    // The context and cuBLAS's own memory are there before.
    let warm = tch::Tensor::randn([512, 512], (tch::Kind::BFloat16, super::DEVICE));
    drop(warm.matmul(&warm));
    tch::Cuda::synchronize(0);
    drop(warm);
    let (before, is_done) = (used(), AtomicBool::new(false));
    let peak = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !is_done.load(Ordering::Relaxed) {
                peak = used().max(peak);
            }
            peak
        });
        let mut trainer = Trainer::new(model(&shape(name)), Arc::new(Single), settings).unwrap();
        let scored = samples(batch);
        for _ in 0..2 {
            trainer.train_rollout(&scored).unwrap();
        }
        tch::Cuda::synchronize(0);
        is_done.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    println!("{}", peak - before);
}
