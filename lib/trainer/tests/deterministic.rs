//! Under `train.deterministic` two trainings give the same bits, in bf16, with and without experts: on a GPU where there is one, on
//! the CPU everywhere.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;
mod tiny;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use slime_comm::Single;
use slime_config::Recompute;
use slime_model::Model;
use slime_record::Sample;
use slime_torch::deterministic;
use slime_trainer::{Scored, Settings, Trainer};
use tch::{Device, Kind, Tensor};
use tiny::settings;
use tiny::sized::Shape;

/// Heads of 64, for which a GPU has kernels of its own.
const DENSE: Shape = Shape { hidden: 256, intermediate: 512, vocab: 2048, num_layers: 2, heads: [4, 2] };
const NUM_RUNS: usize = 3;

/// Groups with long prompts, so that attention and the sums of gradients go over many blocks.
fn samples(vocab: u32, len: u32) -> Vec<Scored> {
    let sample = |group: u32, index: u32| {
        let prompt = (0..len).map(|at| (group * 7 + at * at) % vocab);
        let response = (0..len + 17 * index).map(|at| (group + index * 31 + at * 13) % vocab);
        let tokens: Vec<u32> = prompt.chain(response).collect();
        let loss_mask = vec![1; (len + 17 * index) as usize];
        let sample = Sample { group, index, tokens, prompt_len: len, loss_mask, ..Sample::default() };
        Scored::new(sample, (index % 2) as f32)
    };
    (0..2)
        .flat_map(|group| (0..4).map(move |index| (group, index)))
        .map(|(group, index)| sample(group, index))
        .collect()
}

/// The weights after two rollouts of two optimizer steps.
fn weights(dir: &Path, device: Device, settings: &Settings, scored: &[Scored]) -> Vec<Tensor> {
    let model = Model::load(dir, Kind::BFloat16, device).unwrap();
    let mut trainer = Trainer::new(model, Arc::new(Single), settings.clone()).unwrap();
    for _ in 0..2 {
        trainer.train_rollout(scored).unwrap();
    }
    trainer.policy().params().iter().map(|(_, tensor)| tensor.detach().to_device(Device::Cpu)).collect()
}

fn repeats(dir: &Path, device: Device, scored: &[Scored]) {
    for recompute in [Recompute::None, Recompute::Full] {
        let mut settings = settings();
        (settings.num_steps_per_rollout, settings.train.recompute) = (2, recompute);
        settings.train.max_tokens_per_gpu = 4096;
        let first = weights(dir, device, &settings, scored);
        for run in 1..NUM_RUNS {
            for (at, (got, expected)) in
                weights(dir, device, &settings, scored).iter().zip(&first).enumerate()
            {
                assert!(got.equal(expected), "{}: run {run}, storage {at}, {recompute:?}", dir.display());
            }
        }
    }
}

fn on(device: Device, len: u32) {
    deterministic::require().unwrap();
    assert!(deterministic::is_required());
    let dense = tempfile::tempdir().unwrap();
    DENSE.write(dense.path());
    repeats(dense.path(), device, &samples(2048, len));
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    // On a machine that did not build this they are elsewhere.
    let fixtures = std::env::var_os("SLIME_FIXTURES").map_or_else(here, PathBuf::from);
    for name in ["qwen3_moe", "glm4_moe"] {
        repeats(&fixtures.join(name), device, &samples(96, 64));
    }
}

#[test]
fn trainings_repeat_to_the_bit() {
    tch::set_num_threads(1);
    on(Device::Cpu, 48);
}

#[test]
fn trainings_repeat_to_the_bit_on_a_gpu() {
    deterministic::require().unwrap();
    if gate::has_gpu() {
        on(Device::Cuda(0), 700);
    }
}
