//! A training rank holds less than 20 bytes for each parameter, activations apart.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod tiny;

use std::path::Path;
use std::sync::Arc;

use slime_comm::Single;
use slime_config::Train;
use slime_model::Model;
use slime_record::Sample;
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Kind};
use tiny::sized::{Shape, status_bytes};

/// Nearly all matrices, so that what a handful of tokens activates does not count.
const SHAPE: Shape = Shape { hidden: 768, intermediate: 3072, vocab: 512, num_layers: 3, heads: [12, 4] };
/// The limit of a training rank.
const MOST_BYTES: f64 = 20.0;

fn train(dir: &Path) -> f64 {
    let model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let num_parameters = model.params().num_parameters() as f64;
    let settings = Settings {
        train: Train { lr: 1e-4, max_tokens_per_gpu: 16, ..Train::default() },
        num_optimizer_steps: 10,
        ..Settings::default()
    };
    let mut trainer = Trainer::new(model, Arc::new(Single), settings).unwrap();
    let scored: Vec<Scored> = (0..4u32)
        .map(|index| {
            let tokens = vec![5, 6, 7, 8 + index, 9, 10 + index];
            let (loss_mask, prompt_len) = (vec![1; 3], 3);
            let sample = Sample { index, tokens, prompt_len, loss_mask, ..Sample::default() };
            Scored::new(sample, (index % 2) as f32)
        })
        .collect();
    for _ in 0..3 {
        trainer.train_rollout(&scored).unwrap();
    }
    num_parameters
}

#[test]
fn training_rank_stays_below_20_bytes_for_each_parameter() {
    let dir = tempfile::tempdir().unwrap();
    SHAPE.write(dir.path());
    // libtorch's own code and threads come into memory with the first step of any model.
    train(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama"));
    // Sets the peak back to what is resident now.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_bytes("VmRSS:");
    let num_parameters = train(dir.path());
    let bytes = (status_bytes("VmHWM:") - before) / num_parameters;
    println!("{bytes:.2} bytes for each of {num_parameters:.2e} parameters at the peak");
    // Weights, gradients and two moments alone take 16: less would mean that nothing was measured.
    assert!((16.0..MOST_BYTES).contains(&bytes), "{bytes:.2} bytes for each parameter");
}
