//! An engine over several ranks gives the tokens of one rank: every family, with experts by width and by number, in a tight cache,
//! with guesses, after new weights.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use slime_comm::{Communicator, Layout, Threads};
use slime_engine::{
    Completion, Engine, EngineConfig, KvOnSwap, ModelRunner, Penalties, Ranks, Request, SampleSeed,
    SamplingParams,
};
use tch::{Device, Kind};

/// Model, then tp, ep and etp. The models have 4 heads and 2 key-value heads, 6 experts or 8.
const SPLIT: [(&str, [usize; 3]); 15] = [
    ("llama", [2, 1, 1]),
    ("llama_tied", [4, 1, 1]),
    ("qwen2", [2, 1, 1]),
    ("qwen3", [2, 1, 1]),
    ("qwen3", [4, 1, 1]),
    ("glm4", [2, 1, 1]),
    ("mimo", [4, 1, 1]),
    ("qwen3_moe", [2, 1, 2]),
    ("qwen3_moe", [2, 2, 1]),
    ("qwen3_moe", [4, 2, 2]),
    ("glm45_air", [2, 2, 1]),
    ("glm4_moe", [2, 1, 2]),
    ("glm4_moe", [4, 4, 1]),
    ("minimax_m2", [2, 2, 1]),
    ("minimax_m2", [4, 2, 2]),
];

fn dir(name: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    // On a machine that did not build this they are elsewhere.
    std::env::var_os("SLIME_FIXTURES").map_or_else(here, PathBuf::from).join(name)
}

fn config(num_blocks: usize, num_draft_tokens: usize) -> EngineConfig {
    EngineConfig {
        block_size: 4,
        num_blocks,
        max_num_seqs: 6,
        max_batch_tokens: 24,
        num_draft_tokens,
        ..EngineConfig::default()
    }
}

fn request(id: u64, temperature: f64) -> Request {
    let penalties = Penalties { repetition: 1.1, ..Penalties::default() };
    Request {
        id,
        tokens: (0..5 + 3 * id as u32).map(|i| (i * 7 + id as u32) % 60).collect(),
        params: SamplingParams {
            temperature,
            n: 2,
            max_new_tokens: 10,
            penalties: if id == 1 { penalties } else { Penalties::default() },
            keeps_routes: true,
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
    done.sort_by_key(|c| (c.id, c.index));
    done
}

/// What is asked of an engine: requests, an aborted one, log-probs of given tokens, and requests under new weights.
fn work(runner: ModelRunner, config: &EngineConfig, after: &Path) -> (Vec<Completion>, Vec<f32>) {
    let mut engine = Engine::new(runner, Arc::new(|_: &[u32]| String::new()), config, 0).unwrap();
    for (id, temperature) in [(0, 0.0), (1, 0.9), (2, 1.0), (3, 0.0)] {
        engine.submit(request(id, temperature)).unwrap();
    }
    engine.step().unwrap();
    assert_eq!(engine.abort(2).len(), 2);
    let mut done = run(&mut engine);
    let scores = engine.score(9, &[3, 1, 4, 1, 5, 9, 2, 6], 0.8).unwrap();
    engine.swap_weights(1, KvOnSwap::Recompute, |runner| runner.reload(after)).unwrap();
    engine.submit(request(4, 0.0)).unwrap();
    done.extend(run(&mut engine));
    (done, scores)
}

/// On every rank of a world on the CPU.
fn on_ranks(
    name: &str,
    split: [usize; 3],
    config: &EngineConfig,
    after: &Path,
) -> (Vec<Completion>, Vec<f32>) {
    on_ranks_of(Device::Cpu, name, split, config, after)
}

/// On every rank of a world; the others follow rank 0.
fn on_ranks_of(
    device: Device,
    name: &str,
    [tp, ep, etp]: [usize; 3],
    config: &EngineConfig,
    after: &Path,
) -> (Vec<Completion>, Vec<f32>) {
    let layout = Layout { tp, ep, etp, ..Layout::default() };
    let rank = |comm: Arc<dyn Communicator>| {
        let is_first = comm.rank() == 0;
        let ranks = Ranks::new(comm, layout);
        if !is_first {
            ranks.follow(Kind::Float, device).unwrap();
            return None;
        }
        let runner = ranks.load(&dir(name), Kind::Float, device).unwrap();
        let done = work(runner, config, after);
        ranks.end().unwrap();
        Some(done)
    };
    Threads::spawn(tp, |comm| rank(Arc::new(comm))).unwrap().remove(0).unwrap()
}

/// The fixture with every weight at half its size.
fn halved(name: &str, to: &Path) -> PathBuf {
    let target = to.join(name);
    std::fs::create_dir_all(&target).unwrap();
    for file in std::fs::read_dir(dir(name)).unwrap().map(Result::unwrap) {
        let mut bytes = std::fs::read(file.path()).unwrap();
        if file.path().extension().is_some_and(|extension| extension == "safetensors") {
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            for weight in bytes[header..].as_chunks_mut::<4>().0 {
                *weight = (f32::from_le_bytes(*weight) / 2.0).to_le_bytes();
            }
        }
        std::fs::write(target.join(file.file_name()), bytes).unwrap();
    }
    target
}

fn assert_same(got: &(Vec<Completion>, Vec<f32>), expected: &(Vec<Completion>, Vec<f32>), what: &str) {
    let close = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len(), "{what}");
        let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-5, "{what}: log-probs differ by {most:e}");
    };
    assert_eq!(got.0.len(), expected.0.len(), "{what}");
    for (got, expected) in got.0.iter().zip(&expected.0) {
        assert_eq!(
            (got.id, got.index, &got.tokens),
            (expected.id, expected.index, &expected.tokens),
            "{what}"
        );
        assert_eq!(got.weight_versions, expected.weight_versions, "{what}");
        assert_eq!(got.routed_experts, expected.routed_experts, "{what}: experts of {}", got.id);
        close(&got.log_probs, &expected.log_probs);
    }
    close(&got.1, &expected.1);
}

fn alone(name: &str, config: &EngineConfig, after: &Path) -> (Vec<Completion>, Vec<f32>) {
    work(ModelRunner::load(&dir(name), Kind::Float, Device::Cpu).unwrap(), config, after)
}

#[test]
fn every_family_gives_the_tokens_of_one_rank() {
    tch::set_num_threads(1);
    let halves = tempfile::tempdir().unwrap();
    for (name, split) in SPLIT {
        let (config, after) = (config(64, 0), halved(name, halves.path()));
        let expected = alone(name, &config, &after);
        assert_eq!(expected.0.len(), 8, "three requests and one under new weights, two samples each");
        assert_same(&on_ranks(name, split, &config, &after), &expected, &format!("{name} {split:?}"));
    }
}

#[test]
fn a_tight_cache_and_guesses_change_nothing() {
    tch::set_num_threads(1);
    let halves = tempfile::tempdir().unwrap();
    for (name, split) in [("qwen3", [2, 1, 1]), ("glm4_moe", [2, 2, 1])] {
        let after = halved(name, halves.path());
        for config in [config(12, 0), config(64, 3)] {
            let expected = alone(name, &config, &after);
            let what = format!("{name} {split:?} {config:?}");
            assert_same(&on_ranks(name, split, &config, &after), &expected, &what);
        }
    }
}

#[test]
fn ranks_that_share_a_gpu_give_the_tokens_of_one_there() {
    if !gate::has_gpu() {
        return;
    }
    let halves = tempfile::tempdir().unwrap();
    for (name, split) in [("qwen3", [2, 1, 1]), ("qwen3_moe", [2, 2, 1]), ("glm4_moe", [2, 1, 2])] {
        let after = halved(name, halves.path());
        let config = config(64, 0);
        let device = Device::Cuda(0);
        let runner = ModelRunner::load(&dir(name), Kind::Float, device).unwrap();
        let alone = work(runner, &config, &after);
        let split = on_ranks_of(device, name, split, &config, &after);
        assert_same(&split, &alone, &format!("{name} on a GPU"));
    }
}

#[test]
fn weights_that_are_refused_leave_all_ranks_at_the_old_ones() {
    tch::set_num_threads(1);
    let config = config(64, 0);
    let rank = |comm: Arc<dyn Communicator>| {
        let is_first = comm.rank() == 0;
        let ranks = Ranks::new(comm, Layout { tp: 2, ..Layout::default() });
        if !is_first {
            return ranks.follow(Kind::Float, Device::Cpu).map(|()| Vec::new()).unwrap();
        }
        let runner = ranks.load(&dir("qwen3"), Kind::Float, Device::Cpu).unwrap();
        let mut engine = Engine::new(runner, Arc::new(|_: &[u32]| String::new()), &config, 0).unwrap();
        for wrong in [dir("llama"), PathBuf::from("/nonexistent")] {
            let error =
                engine.swap_weights(1, KvOnSwap::Recompute, |runner| runner.reload(&wrong)).unwrap_err();
            assert!(error.to_string().contains(&*wrong.to_string_lossy()), "{error}");
        }
        engine.submit(request(0, 0.0)).unwrap();
        let done = run(&mut engine);
        drop(engine);
        ranks.end().unwrap();
        done
    };
    let done = Threads::spawn(2, |comm| rank(Arc::new(comm))).unwrap().remove(0);
    assert_eq!(done[0].weight_versions[0].version, 0);
    assert_eq!(done[0].tokens, alone("qwen3", &config, &dir("qwen3")).0[0].tokens);
}
