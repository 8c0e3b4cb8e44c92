//! Generation on a GPU against the CPU and against itself. `SLIME_REQUIRE_CUDA=1` makes a missing GPU a failure; without it
//! these tests say so and check nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use std::path::Path;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::HfConfig;
use slime_engine::{
    Completion, Engine, EngineConfig, ModelRunner, Request, SampleSeed, SamplingParams, Scratch, sample,
};
use slime_kernel::sample::{Draw, serve};
use slime_model::{Model, ParamStore};
use tch::{Device, Kind, Tensor};

/// A small model of `family` whose heads are wide enough for the kernels.
fn model(family: &str, kind: Kind, device: Device) -> Model {
    let text = format!(
        r#"{{"model_type":"{family}","hidden_size":256,"intermediate_size":512,"num_hidden_layers":3,"head_dim":64,
        "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":1000,"max_position_embeddings":2048}}"#
    );
    let config = HfConfig::parse(&text, Path::new("config.json")).unwrap();
    let on_host = ParamStore::drawn_from(7, &config, Kind::Float, Device::Cpu).unwrap();
    let mut model = Model::new(config.clone(), on_host).unwrap();
    if device == Device::Cpu {
        return model;
    }
    // The same numbers, whatever generator the device has.
    let params = ParamStore::drawn_from(7, &config, kind, device).unwrap();
    tch::no_grad(|| {
        for ((_, mut to), (_, from)) in
            params.iter().map(|(s, t)| (s, t.shallow_clone())).zip(model.params_mut().iter())
        {
            to.copy_(from);
        }
    });
    Model::new(config, params).unwrap()
}

fn engine(family: &str, kind: Kind, device: Device, config: &EngineConfig) -> Engine<ModelRunner> {
    let runner = ModelRunner::new(model(family, kind, device), Path::new(family)).unwrap();
    Engine::new(runner, Arc::new(|_: &[u32]| String::new()), config, 0).unwrap()
}

fn request(id: u64, temperature: f64) -> Request {
    let len = 3 + 97 * id as u32 % 700;
    Request {
        id,
        tokens: (0..len).map(|i| (i * 7919 + id as u32 * 131) % 1000).collect(),
        params: SamplingParams {
            temperature,
            n: 2,
            max_new_tokens: 5 + (37 * id as usize) % 60,
            seed: SampleSeed { seed: 1, step: 0, group: id as u32, index: 0 },
            ..SamplingParams::default()
        },
    }
}

fn run(engine: &mut Engine<ModelRunner>) -> Vec<Completion> {
    let mut done = Vec::new();
    while !engine.is_idle() {
        done.extend(engine.step().unwrap());
    }
    done.sort_by_key(|c: &Completion| (c.id, c.index));
    done
}

fn config(num_blocks: usize) -> EngineConfig {
    EngineConfig { num_blocks, max_num_seqs: 24, max_batch_tokens: 512, ..EngineConfig::default() }
}

#[test]
fn samples_of_graphs_are_those_of_the_cpu_and_their_log_probs_those_of_whole_passes() {
    if !gate::has_gpu() {
        return;
    }
    for family in ["llama", "qwen2", "qwen3"] {
        let mut on_cpu = engine(family, Kind::Float, Device::Cpu, &config(2000));
        for (kind, tolerance) in [(Kind::Float, 2e-4), (Kind::BFloat16, 0.08)] {
            // Few blocks force sequences back and prompts through in chunks.
            for num_blocks in [2000, 150] {
                let mut on_gpu = engine(family, kind, Device::Cuda(0), &config(num_blocks));
                for temperature in [0.0, 0.8] {
                    for id in [1, 3, 4, 6, 7, 10] {
                        on_gpu.submit(request(id, temperature)).unwrap();
                        on_cpu.submit(request(id, temperature)).unwrap();
                    }
                    let (got, expected) = (run(&mut on_gpu), run(&mut on_cpu));
                    assert_eq!(got.len(), 12);
                    let mut same = 0;
                    for (got, expected) in got.iter().zip(&expected) {
                        assert_eq!(got.tokens.len(), expected.tokens.len());
                        same += usize::from(got.tokens == expected.tokens);
                        let mut tokens = request(got.id, temperature).tokens;
                        let prompt_len = tokens.len();
                        tokens.extend(&got.tokens);
                        let scored =
                            on_gpu.score(got.id, &tokens, if temperature > 0.0 { temperature } else { 1.0 });
                        let scored = scored.unwrap();
                        for (at, (a, b)) in got.log_probs.iter().zip(&scored[prompt_len - 1..]).enumerate() {
                            let of_cpu = expected.log_probs[at];
                            assert!(
                                (a - b).abs() < tolerance,
                                "{family} {kind:?}, {num_blocks} blocks, sample {}/{} of {prompt_len} tokens, token {at}: {a}, \
                                 scored {b}, on the CPU {of_cpu} (tokens {} and {})",
                                got.id,
                                got.index,
                                got.tokens[at],
                                expected.tokens[at]
                            );
                        }
                    }
                    eprintln!(
                        "{family} {kind:?} {num_blocks} blocks, temperature {temperature}: {same} of 12 as on the CPU"
                    );
                    assert!(kind != Kind::Float || same >= 11, "{family}: only {same} of 12");
                }
                assert!(num_blocks > 200 || on_gpu.usage().num_preemptions > 0);
            }
        }
    }
}

#[test]
fn drawn_tokens_and_log_probs_are_those_of_the_host() {
    if !gate::has_gpu() {
        return;
    }
    let (device, mut random) = (Device::Cuda(0), ChaCha8Rng::seed_from_u64(5));
    for vocab in [7usize, 1000, 50_257, 151_936] {
        let params: Vec<SamplingParams> = [
            (1.0, 0, 1.0, 0.0),
            (0.0, 0, 1.0, 0.0),
            (0.6, 0, 1.0, 0.0),
            (1.0, 5, 1.0, 0.0),
            (1.3, 0, 0.8, 0.0),
            (1.0, 0, 1.0, 0.05),
            (0.9, 50, 0.9, 0.01),
        ]
        .into_iter()
        .map(|(temperature, top_k, top_p, min_p)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..SamplingParams::default()
        })
        .cycle()
        .take(70)
        .collect();
        let logits: Vec<f32> = (0..vocab * params.len())
            .map(|_| (0..4).map(|_| random.random::<f32>()).sum::<f32>() * 6.0 - 12.0)
            .collect();
        let uniforms: Vec<f64> = params.iter().map(|_| random.random()).collect();
        let rows: Vec<f32> = params
            .iter()
            .flat_map(|p| {
                let inverse = if p.temperature > 0.0 { 1.0 / p.temperature } else { 0.0 };
                [inverse as f32, p.top_k as f32, p.top_p as f32, p.min_p as f32]
            })
            .collect();
        let n = params.len() as i64;
        let on = |tensor: Tensor| tensor.to_device(device);
        let logits_nv = on(Tensor::from_slice(&logits).view((n, vocab as i64)));
        let (params_n4, uniforms_n) =
            (on(Tensor::from_slice(&rows).view((n, 4))), on(Tensor::from_slice(&uniforms)));
        let tokens_n = Tensor::zeros([n], (Kind::Int, device));
        let log_probs_n = Tensor::zeros([n], (Kind::Float, device));
        let draw = Draw { params_n4: &params_n4, uniforms_n: &uniforms_n };
        serve(&logits_nv, draw, &tokens_n, &log_probs_n).unwrap();
        let tokens = Vec::<i32>::try_from(&tokens_n).unwrap();
        let log_probs = Vec::<f32>::try_from(&log_probs_n).unwrap();
        let mut num_others = 0;
        for (at, (params, uniform)) in params.iter().zip(&uniforms).enumerate() {
            let row = &logits[at * vocab..(at + 1) * vocab];
            let expected = sample(row, params, *uniform, &mut Scratch::default()).unwrap();
            // At the edge between two tokens rounding may decide.
            num_others += usize::from(tokens[at] != expected.token as i32);
            let difference = (log_probs[at] - expected.log_prob).abs();
            assert!(
                tokens[at] != expected.token as i32 || difference < 1e-4,
                "{params:?} of {vocab}: {} and {}",
                log_probs[at],
                expected.log_prob
            );
        }
        eprintln!("{vocab} ids: {num_others} of {n} rows drew a neighbour");
        assert!(num_others <= 1, "{num_others} of {n}");
    }
}

#[test]
fn rows_that_are_no_numbers_are_told() {
    if !gate::has_gpu() {
        return;
    }
    let device = Device::Cuda(0);
    let rows =
        [[0.0f32, f32::NAN, 1.0], [f32::INFINITY, 0.0, 0.0], [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]];
    let logits_nv = Tensor::from_slice(&rows.concat()).view((3, 3)).to_device(device);
    let params_n4 = Tensor::from_slice(&[1.0f32, 0.0, 1.0, 0.0].repeat(3)).view((3, 4)).to_device(device);
    let uniforms_n = Tensor::from_slice(&[0.5f64; 3]).to_device(device);
    let (tokens_n, log_probs_n) =
        (Tensor::zeros([3], (Kind::Int, device)), Tensor::zeros([3], (Kind::Float, device)));
    serve(&logits_nv, Draw { params_n4: &params_n4, uniforms_n: &uniforms_n }, &tokens_n, &log_probs_n)
        .unwrap();
    assert_eq!(Vec::<i32>::try_from(&tokens_n).unwrap(), [-1, -1, 1]);
}
