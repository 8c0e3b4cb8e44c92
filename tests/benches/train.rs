//! A training step on the CPU by turns with a padded `PyTorch` step on the same samples and with the bare matrix products.
//!
//! `cargo bench -p slime-trainer --bench train -- WEIGHTS_DIR`; `SLIME_BENCH_PYTHON` names a Python with torch and
//! transformers. `NUM_GROUPS`, `NUM_SAMPLES`, `MICRO_BATCH` (of the rival), `REPEATS` and `OMP_NUM_THREADS` change the sizes.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "rival/mod.rs"]
mod rival;

use std::sync::Arc;

use rival::{Rival, Seconds, report, setting, timed};
use slime_comm::Single;
use slime_config::Train;
use slime_model::Model;
use slime_record::Sample;
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Kind, Tensor};

/// Groups of samples with one prompt each; prompts of 32 tokens and more, responses of 8 to 64 tokens, most of them short.
fn rollout(groups: usize, samples: usize) -> Vec<Scored> {
    let token = |seed: usize, at: usize| (1000 + (at * 7919 + seed * 104_729) % 40_000) as u32;
    let mut scored = Vec::new();
    for group in 0..groups {
        let prompt: Vec<u32> = (0..32 + 16 * (group * 3 % 4)).map(|at| token(group, at)).collect();
        for index in 0..samples {
            let draw = (group * 31 + index * 17) % 29;
            let response: Vec<u32> = (0..8 + 56 * draw * draw / (28 * 28))
                .map(|at| token(1 + group * samples + index, at))
                .collect();
            let loss_mask = vec![1; response.len()];
            let sample = Sample {
                group: group as u32,
                index: index as u32,
                prompt_len: prompt.len() as u32,
                tokens: [prompt.clone(), response].concat(),
                loss_mask,
                ..Sample::default()
            };
            scored.push(Scored::new(sample, (index % 2) as f32));
        }
    }
    scored
}

fn job(dir: &str, scored: &[Scored], threads: i32, micro_batch: usize) -> String {
    let samples: Vec<String> = scored
        .iter()
        .map(|scored| {
            let (prompt, response) = (scored.sample.prompt_tokens(), scored.sample.response_tokens());
            let advantage = scored.reward.unwrap_or_default() * 2.0 - 1.0;
            format!(r#"{{"prompt": {prompt:?}, "response": {response:?}, "advantage": {advantage}}}"#)
        })
        .collect();
    format!(
        r#"{{"weights": {dir:?}, "threads": {threads}, "micro_batch": {micro_batch}, "samples": [{}]}}"#,
        samples.join(", ")
    )
}

/// The products of forward (one) and backward (two) over `rows` tokens and `head_rows` trained ones.
fn bare_products(model: &Model, rows: usize, head_rows: usize) {
    let product = |weight: &Tensor, rows: usize| {
        let options = (Kind::Float, Device::Cpu);
        let (x, grad) = (
            Tensor::ones([rows as i64, weight.size()[1]], options),
            Tensor::ones([rows as i64, weight.size()[0]], options),
        );
        let _ = x.linear(weight, None::<&Tensor>);
        let _ = grad.matmul(weight);
        let _ = grad.tr().matmul(&x);
    };
    for (spec, weight) in model.params().iter().filter(|(spec, _)| spec.shape.len() == 2) {
        match spec.name.as_str() {
            "embed" if model.params().find("head").is_some() => {}
            "embed" | "head" => product(weight, head_rows),
            _ => product(weight, rows),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let Some(dir) = arguments.first() else {
        println!("no weight directory given, nothing measured");
        return;
    };
    let (groups, samples) = (setting("NUM_GROUPS", 2), setting("NUM_SAMPLES", 8));
    let (micro_batch, repeats) = (setting("MICRO_BATCH", 8), setting("REPEATS", 3));
    let threads = setting("OMP_NUM_THREADS", std::thread::available_parallelism().unwrap().get() as i32);
    tch::set_num_threads(threads);
    let scored = rollout(groups, samples);
    let settings = Settings {
        train: Train { lr: 1e-6, max_tokens_per_gpu: 1024, ..Train::default() },
        num_optimizer_steps: 1000,
        ..Settings::default()
    };
    let model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let products = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let mut trainer = Trainer::new(model, Arc::new(Single), settings).unwrap();
    let mut rival = Rival::start("rival_train.py", threads, &job(dir, &scored, threads, micro_batch));

    let counts = trainer.train_rollout(&scored).unwrap().remove(0);
    if let Some(rival) = &mut rival {
        rival.run();
    }
    println!(
        "{} samples of {groups} prompts, {} tokens as separate sequences, {} with shared prompts, {} trained; {threads} \
         threads, f32",
        counts.num_samples, counts.num_unshared_tokens, counts.num_forward_tokens, counts.num_trained_tokens,
    );
    let (mut ours, mut theirs, mut bare): (Vec<Seconds>, Vec<_>, Vec<_>) = (vec![], vec![], vec![]);
    for _ in 0..repeats {
        ours.push(timed(|| drop(trainer.train_rollout(&scored).unwrap())));
        let (rows, head_rows) = (counts.num_forward_tokens, counts.num_trained_tokens);
        bare.push(timed(|| tch::no_grad(|| bare_products(&products, rows, head_rows))));
        theirs.extend(rival.as_mut().map(Rival::run));
    }
    if rival.is_some() {
        report("training step against a padded PyTorch step:", &ours, &theirs);
    }
    report("training step against its bare matrix products:", &ours, &bare);
}
