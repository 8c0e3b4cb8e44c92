//! Tiny models and ragged rollouts for tests of the trainer.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod deep;
pub mod sized;

use std::path::PathBuf;
use std::sync::Arc;

use slime_comm::Communicator;
use slime_config::Train;
use slime_model::Model;
use slime_record::Sample;
use slime_trainer::packing::{Packing, pack};
use slime_trainer::{MicroBatch, Scored, Settings, Trainer};
use tch::{Device, Kind};

pub fn model(name: &str, kind: Kind) -> Model {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    Model::load(dir, kind, Device::Cpu).unwrap()
}

/// A ragged rollout: group g has prompts of 3 + g tokens and samples of 1 to 9 response tokens, some of them masked.
pub fn rollout(num_groups: u32, num_samples: u32) -> Vec<Scored> {
    let mut scored = Vec::new();
    for group in 0..num_groups {
        for index in 0..num_samples {
            let mut state = group * 31 + 7;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) % 96
            };
            let prompt: Vec<u32> = (0..3 + group).map(|_| next()).collect();
            state = group * 101 + index * 13 + 5;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) % 96
            };
            let response: Vec<u32> = (0..=(group + 3 * index) % 9).map(|_| next()).collect();
            let loss_mask = (0..response.len()).map(|at| u8::from(index != 1 || at % 3 != 0)).collect();
            let tokens = [prompt.clone(), response].concat();
            let prompt_len = prompt.len() as u32;
            let sample = Sample { group, index, tokens, prompt_len, loss_mask, ..Sample::default() };
            scored.push(Scored::new(sample, (index % 2) as f32 + 0.1 * group as f32));
        }
    }
    scored
}

pub fn packed(samples: &[Sample], max_tokens: usize) -> Vec<MicroBatch> {
    let samples: Vec<&Sample> = samples.iter().collect();
    pack(&samples, Packing { max_tokens, ..Packing::default() }, 1, |_| 0.0).unwrap().remove(0)
}

pub fn settings() -> Settings {
    Settings {
        train: Train { lr: 1e-3, max_tokens_per_gpu: 64, ..Train::default() },
        temperature: 0.7,
        num_optimizer_steps: 10,
        ..Settings::default()
    }
}

pub fn trainer(kind: Kind, comm: Arc<dyn Communicator>, settings: Settings) -> Trainer {
    Trainer::new(model("llama", kind), comm, settings).unwrap()
}
