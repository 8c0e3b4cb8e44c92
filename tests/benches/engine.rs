//! Generation on a GPU: random weights, fixed lengths, bf16. Prints output tokens per second, and the floor of the same work:
//! bytes of weights and keys and values over the copy bandwidth, and the products of the prompts over the rate of a large
//! product, both measured in this run.
//!
//! `cargo bench --workspace --bench engine` (`tests/gpu/engine.sh` runs it with the libraries it needs); `SHAPES` (`0.6b,8b`),
//! `WORKLOADS` (`mixed,long,one`), `KV` (`auto`, `fp8_e4m3`) and `REPEATS` choose. The floor is that of a cache in bf16.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slime_config::{HfConfig, KvCacheDtype};
use slime_engine::{Engine, EngineConfig, ModelRunner, Request, SampleSeed, SamplingParams};
use slime_model::{Model, ParamStore};
use slime_torch::cuda;
use tch::{Device, Kind, Tensor};

const DEVICE: Device = Device::Cuda(0);

/// The shapes of Qwen3-0.6B and Qwen3-8B.
fn shape(name: &str) -> HfConfig {
    let (hidden, intermediate, layers, heads, tied) = match name {
        "0.6b" => (1024, 3072, 28, 16, true),
        "8b" => (4096, 12_288, 36, 32, false),
        other => panic!("no shape {other}"),
    };
    let text = format!(
        r#"{{"model_type":"qwen3","hidden_size":{hidden},"intermediate_size":{intermediate},"num_hidden_layers":{layers},
        "head_dim":128,"num_attention_heads":{heads},"num_key_value_heads":8,"vocab_size":151936,"rope_theta":1000000,
        "tie_word_embeddings":{tied},"max_position_embeddings":40960}}"#
    );
    HfConfig::parse(&text, Path::new("config.json")).unwrap()
}

/// Lengths of prompt and response of every request.
fn workload(name: &str) -> Vec<(usize, usize)> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    match name {
        "mixed" => {
            (0..256).map(|_| (random.random_range(100..=1024), random.random_range(100..=1024))).collect()
        }
        "long" => vec![(1024, 1024); 256],
        "one" => vec![(100, 512)],
        other => panic!("no workload {other}"),
    }
}

fn generate(engine: &mut Engine<ModelRunner>, lens: &[(usize, usize)], step: u64) -> f64 {
    let began = Instant::now();
    for (group, (prompt_len, response_len)) in lens.iter().enumerate() {
        let params = SamplingParams {
            max_new_tokens: *response_len,
            seed: SampleSeed { seed: 1, step, group: group as u32, index: 0 },
            ..SamplingParams::default()
        };
        let tokens = (0..*prompt_len).map(|i| ((i * 7919 + group * 104_729) % 150_000) as u32).collect();
        engine.submit(Request { id: group as u64, tokens, params }).unwrap();
    }
    let mut num_tokens = 0;
    while !engine.is_idle() {
        num_tokens += engine.step().unwrap().iter().map(|done| done.tokens.len()).sum::<usize>();
    }
    assert_eq!(num_tokens, lens.iter().map(|(_, len)| len).sum::<usize>());
    began.elapsed().as_secs_f64()
}

/// Bytes per second of a copy (read and written), and operations per second of a product.
fn rates() -> (f64, f64) {
    let seconds = |repeats: usize, work: &mut dyn FnMut()| {
        work();
        tch::Cuda::synchronize(0);
        let began = Instant::now();
        for _ in 0..repeats {
            work();
        }
        tch::Cuda::synchronize(0);
        began.elapsed().as_secs_f64() / repeats as f64
    };
    let bytes = 4i64 << 30;
    let (from, mut to) =
        (Tensor::zeros([bytes], (Kind::Uint8, DEVICE)), Tensor::zeros([bytes], (Kind::Uint8, DEVICE)));
    let copy = seconds(10, &mut || to.copy_(&from));
    let square = Tensor::randn([8192, 8192], (Kind::BFloat16, DEVICE));
    let product = seconds(30, &mut || drop(square.matmul(&square)));
    (2.0 * bytes as f64 / copy, 2.0 * 8192f64.powi(3) / product)
}

/// Seconds that the work takes if nothing but memory and products costs any.
fn floor(
    config: &HfConfig,
    model_bytes: f64,
    lens: &[(usize, usize)],
    (bandwidth, product_rate): (f64, f64),
) -> f64 {
    let kv_bytes = (2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2) as f64;
    let read: f64 = lens.iter().map(|(p, r)| (0..*r).map(|i| (p + i) as f64).sum::<f64>() * kv_bytes).sum();
    let num_steps = lens.iter().map(|(_, response_len)| *response_len).max().unwrap_or(0) as f64;
    let embed_bytes = (config.vocab_size * config.hidden_size * 2) as f64;
    // The embedding is looked up; where it is the head too, the head is read.
    let read_weights = if config.tie_word_embeddings { model_bytes } else { model_bytes - embed_bytes };
    let prompt_tokens: f64 = lens.iter().map(|(p, _)| *p as f64).sum();
    let squares: f64 = lens.iter().map(|(p, _)| (*p as f64).powi(2) / 2.0).sum();
    let layers_params = (read_weights - embed_bytes) / 2.0;
    let width = (config.num_hidden_layers * config.num_attention_heads * config.head_dim) as f64;
    let operations = 2.0 * layers_params * prompt_tokens + 4.0 * width * squares;
    (read + read_weights * num_steps) / bandwidth + operations / product_rate
}

fn main() {
    if let Err(error) = cuda::open() {
        println!("nothing measured: {error}");
        return;
    }
    let list = |name: &str, default: &str| {
        let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
        text.split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let repeats: u64 = std::env::var("REPEATS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let rates = rates();
    println!("copy {:.2} TB/s, product of 8192 {:.0} TFLOP/s", rates.0 / 1e12, rates.1 / 1e12);
    for name in list("SHAPES", "0.6b,8b") {
        let config = shape(&name);
        let params = ParamStore::drawn_from(1, &config, Kind::BFloat16, DEVICE).unwrap();
        let model_bytes = params.num_parameters() as f64 * 2.0;
        let runner =
            ModelRunner::new(Model::new(config.clone(), params).unwrap(), Path::new("random")).unwrap();
        let kv = match std::env::var("KV").as_deref() {
            Ok("fp8_e4m3") => KvCacheDtype::Fp8E4m3,
            _ => KvCacheDtype::Auto,
        };
        let runner = runner.with_kv_dtype(kv);
        let engine_config = EngineConfig {
            num_blocks: 256 * 2048 / 16 + 512,
            max_num_seqs: 256,
            max_batch_tokens: 8192,
            // The same prompts come again.
            prefix_cache: false,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(runner, Arc::new(|_: &[u32]| String::new()), &engine_config, 0).unwrap();
        for workload_name in list("WORKLOADS", "mixed,long,one") {
            let lens = workload(&workload_name);
            let first = generate(&mut engine, &lens, 0);
            let seconds: Vec<f64> = (1..=repeats).map(|step| generate(&mut engine, &lens, step)).collect();
            let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let tokens: f64 = lens.iter().map(|(_, len)| *len as f64).sum();
            let floor = floor(&config, model_bytes, &lens, rates);
            println!(
                "{name} {workload_name}: {:.0} output tokens/s ({:?} s, the first with its graphs {first:.2} s); floor {:.0}, \
                 reached {:.2}",
                tokens / best,
                seconds.iter().map(|s| (s * 100.0).round() / 100.0).collect::<Vec<_>>(),
                tokens / floor,
                floor / best
            );
        }
        println!("{name}: {:?}", engine.usage());
    }
}
