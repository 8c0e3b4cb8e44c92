//! A training step on a GPU: random weights, 16,384 packed tokens, bf16. Prints the operations of the model per second, of the
//! layers alone (forward and backward) and of the whole step (loss, clipping and `AdamW` too), beside the rate of a large
//! product, the parts of both, and the peak of the memory beside what the plan says.
//!
//! `cargo bench --workspace --bench train_gpu` (`tests/gpu/train.sh` runs it with the libraries it needs); `SHAPES`
//! (`8b,moe`: four layers of Qwen3-8B's and Qwen3-30B-A3B's shapes), `BATCHES` (`1024,4096,mixed,shared`: sequences of so many
//! tokens, of 75 to 2,245 tokens, or two groups of eight responses of 896 tokens behind a prompt of 1,024),
//! `REPEATS`, `RECOMPUTE` (`none,full`) and `FP8` (`none`, `tensor` or `block`) choose; `REPEATS=0` measures memory alone.
//! `SLIME_BENCH_PYTHON` names a Python with torch and transformers for the same step there.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "train_gpu/parts.rs"]
mod parts;
#[path = "train_gpu/peak.rs"]
mod peak;
#[path = "rival/mod.rs"]
mod rival;

use std::path::Path;
use std::sync::Arc;

use parts::{Rates, gpu_seconds};
use rival::{Rival, setting};
use slime_comm::Single;
use slime_config::{Algorithm, Fp8, Fp8Scaling, HfConfig, LossType, Recompute, Train};
use slime_model::{Context, Model, ParamStore, Segment};
use slime_record::Sample;
use slime_torch::{backward_with, cuda, forget_grad};
use slime_trainer::flops::forward_flops;
use slime_trainer::{MicroBatch, Scored, Settings, Trainer};
use tch::{Device, Kind, Tensor};

const DEVICE: Device = Device::Cuda(0);
/// Of a step.
const NUM_TOKENS: usize = 16_384;
const NUM_LAYERS: usize = 4;

/// Four layers of a model.
fn shape(name: &str) -> HfConfig {
    let own = match name {
        "8b" => {
            r#""model_type":"qwen3","hidden_size":4096,"intermediate_size":12288,"num_attention_heads":32,
            "num_key_value_heads":8"#
        }
        "moe" => {
            r#""model_type":"qwen3_moe","hidden_size":2048,"intermediate_size":6144,"num_attention_heads":32,
            "num_key_value_heads":4,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,
            "norm_topk_prob":true"#
        }
        other => panic!("no shape {other}"),
    };
    let text = format!(
        r#"{{{own},"num_hidden_layers":{NUM_LAYERS},"head_dim":128,"vocab_size":151936,"rope_theta":1000000,
        "tie_word_embeddings":false,"max_position_embeddings":40960}}"#
    );
    HfConfig::parse(&text, Path::new("config.json")).unwrap()
}

fn model(config: &HfConfig) -> Model {
    let params = ParamStore::drawn_from(1, config, Kind::BFloat16, DEVICE).unwrap();
    Model::new(config.clone(), params).unwrap()
}

/// The groups of a step: tokens of the prompt, and of every response.
fn groups(batch: &str) -> Vec<(usize, Vec<usize>)> {
    match batch {
        "shared" => vec![(1024, vec![896; 8]); 2],
        // Many short ones and a few long ones, as models answer; 20 sequences.
        "mixed" => (0..20).map(|at| (1, vec![74 + 2170 * at * at / 361])).collect(),
        len => {
            let len: usize = len.parse().unwrap();
            vec![(1, vec![len - 1]); NUM_TOKENS / len]
        }
    }
}

/// The sequences of a step side by side.
fn segments(batch: &str) -> Vec<Segment> {
    let (mut segments, mut start) = (Vec::new(), 0);
    for (prompt, responses) in groups(batch) {
        if let [response] = responses[..] {
            segments.push(Segment::alone(start, prompt + response));
            start += prompt + response;
            continue;
        }
        let shared = (start, prompt);
        segments.push(Segment::alone(start, prompt));
        start += prompt;
        for response in responses {
            segments.push(Segment::after(shared, start, response));
            start += response;
        }
    }
    segments
}

fn num_tokens(batch: &str) -> usize {
    segments(batch).iter().map(|segment| segment.len).sum()
}

fn token(at: usize) -> u32 {
    (1000 + at * 7919 % 140_000) as u32
}

/// Their samples; every token of a response is trained.
fn samples(batch: &str) -> Vec<Scored> {
    let mut scored = Vec::new();
    for (group, (prompt_len, responses)) in groups(batch).into_iter().enumerate() {
        for (index, response) in responses.into_iter().enumerate() {
            let prompt = (0..prompt_len).map(|at| token(group * 31 + at));
            let own = (0..response).map(|at| token((group * 8 + index) * 4096 + at));
            let (group, index) = (group as u32, index as u32);
            let (tokens, prompt_len) = (prompt.chain(own).collect(), prompt_len as u32);
            let loss_mask = vec![1; response];
            let sample = Sample { group, index, tokens, prompt_len, loss_mask, ..Sample::default() };
            scored.push(Scored::new(sample, 1.0));
        }
    }
    scored
}

fn settings(recompute: Recompute) -> Settings {
    let train =
        Train { lr: 1e-6, max_tokens_per_gpu: NUM_TOKENS as u32, recompute, fp8: fp8(), ..Train::default() };
    let algorithm = Algorithm { loss: LossType::Sft, ..Algorithm::default() };
    Settings { train, algorithm, num_optimizer_steps: 1000, ..Settings::default() }
}

/// Whether products are in fp8, as `FP8` says.
fn fp8() -> Option<Fp8> {
    let scaling = match setting("FP8", "none".to_owned()).as_str() {
        "none" => return None,
        "tensor" => Fp8Scaling::Tensor,
        "block" => Fp8Scaling::Block,
        other => panic!("no fp8 scaling {other}"),
    };
    Some(Fp8 { scaling, ..Fp8::default() })
}

/// Operations of forward and backward (twice as many) of the layers, and of the head.
fn operations(config: &HfConfig, batch: &str) -> (f64, f64) {
    let segments = segments(batch);
    let tokens = vec![0; num_tokens(batch)];
    let layers = MicroBatch { tokens, segments, ..MicroBatch::default() };
    let rows: usize = groups(batch).iter().flat_map(|(_, responses)| responses).sum();
    let head = 2.0 * rows as f64 * config.hidden_size as f64 * config.vocab_size as f64;
    (3.0 * forward_flops(config, &layers), 3.0 * head)
}

/// Seconds of forward and backward of the layers.
fn layers_seconds(model: &Model, batch: &str, repeats: usize) -> f64 {
    model.params().set_requires_grad(true);
    let num_tokens = num_tokens(batch);
    let tokens: Vec<i64> = (0..num_tokens).map(|at| i64::from(token(at))).collect();
    let tokens_t = Tensor::from_slice(&tokens).to_device(DEVICE);
    let hidden = model.config().hidden_size as i64;
    let grad_td = Tensor::randn([num_tokens as i64, hidden], (Kind::BFloat16, DEVICE)) * 1e-3;
    let pass = |model: &Model| {
        let mut context = Context::packed(&segments(batch), Kind::BFloat16, DEVICE).unwrap();
        let hidden_td = model.forward(&mut context, &tokens_t).unwrap();
        backward_with(&[&hidden_td], &[&grad_td]).unwrap();
    };
    let mut times = Vec::new();
    for at in 0..=repeats {
        model.params().trained().for_each(|(_, param)| forget_grad(param).unwrap());
        let time = gpu_seconds(1, &mut || pass(model));
        times.extend((at > 0).then_some(time));
    }
    model.params().set_requires_grad(false);
    parts::median(times)
}

/// Seconds of a whole step.
fn step_seconds(config: &HfConfig, batch: &str, recompute: Recompute, repeats: usize) -> f64 {
    let mut trainer = Trainer::new(model(config), Arc::new(Single), settings(recompute)).unwrap();
    let scored = samples(batch);
    let times = (0..=repeats).map(|_| gpu_seconds(1, &mut || drop(trainer.train_rollout(&scored).unwrap())));
    parts::median(times.skip(1).collect())
}

/// Seconds of the layers and of the step in another program, for the batches of one length.
fn rival_seconds(name: &str, batches: &[String], repeats: usize) -> Vec<Option<[f64; 2]>> {
    let lens: Vec<Option<usize>> = batches.iter().map(|batch| batch.parse().ok()).collect();
    let even: Vec<usize> = lens.iter().flatten().copied().collect();
    let job = format!(r#"{{"num_layers": {NUM_LAYERS}, "num_tokens": {NUM_TOKENS}, "lens": {even:?}}}"#);
    let is_asked = name == "8b" && !even.is_empty();
    let rival = is_asked.then(|| Rival::start("rival_train_gpu.py", 8, &job)).flatten();
    let Some(mut rival) = rival else { return vec![None; batches.len()] };
    let mut times = vec![[Vec::new(), Vec::new()]; even.len()];
    for at in 0..=repeats {
        for parts in times.iter_mut().flatten() {
            let seconds = rival.run().wall;
            parts.extend((at > 0).then_some(seconds));
        }
    }
    let mut times = times.into_iter().map(|parts| parts.map(parts::median));
    lens.into_iter().map(|len| len.and_then(|_| times.next())).collect()
}

fn list(name: &str, default: &str) -> Vec<String> {
    setting(name, default.to_owned()).split(',').map(str::to_owned).collect()
}

fn recompute_of(name: &str) -> Recompute {
    match name {
        "none" => Recompute::None,
        "selective" => Recompute::Selective,
        "full" => Recompute::Full,
        other => panic!("no recomputation {other}"),
    }
}

fn measure(name: &str, rates: &Rates, batches: &[String], repeats: usize) {
    let config = shape(name);
    let rivals = rival_seconds(name, batches, repeats);
    for (batch, rival) in batches.iter().zip(rivals) {
        let (layers, head) = operations(&config, batch);
        println!("--- {name}, {NUM_LAYERS} layers, {} tokens, {batch}", num_tokens(batch));
        let tell = |what: &str, operations: f64, seconds: f64, rival: Option<f64>| {
            let rate = operations / seconds;
            let times =
                rival.map_or(String::new(), |other| format!(", {:.2} x transformers", other / seconds));
            println!(
                "{what}: {:.1} ms, {:.0} TFLOP/s, {:.3} of a product's rate{times}",
                seconds * 1e3,
                rate / 1e12,
                rate / rates.operations
            );
        };
        let mut whole = model(&config);
        if let Some(fp8) = fp8() {
            whole.set_fp8(&fp8).unwrap();
            // A first pass, after which scales of tensors are known.
            layers_seconds(&whole, batch, 1);
            whole.end_fp8_step(|_| Ok::<_, slime_model::Error>(())).unwrap();
        }
        let seconds = layers_seconds(&whole, batch, repeats);
        tell("layers, forward and backward", layers, seconds, rival.map(|parts| parts[0]));
        parts::tell(&whole, batch, rates, repeats);
        drop(whole);
        for recompute in list("RECOMPUTE", "none,full") {
            let seconds = step_seconds(&config, batch, recompute_of(&recompute), repeats);
            tell(
                &format!("step, recompute {recompute}"),
                layers + head,
                seconds,
                rival.map(|parts| parts[1]),
            );
        }
    }
}

fn main() {
    if let Ok(asked) = std::env::var(peak::OF) {
        return peak::print(&asked);
    }
    if let Err(error) = cuda::open() {
        println!("not measured: {error}");
        return;
    }
    let repeats = setting("REPEATS", 7);
    let batches = list("BATCHES", "1024,4096,mixed,shared");
    let rates = Rates::measure();
    for name in list("SHAPES", "8b,moe") {
        for recompute in list("RECOMPUTE", "none,full") {
            peak::tell(&name, &batches[0], &recompute);
        }
        if repeats > 0 {
            measure(&name, &rates, &batches, repeats);
        }
    }
}
