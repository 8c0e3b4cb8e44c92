//! What a training step is made of, part by part, and the rates of the GPU that they are held against.

use std::time::Instant;

use slime_config::HfConfig;
use slime_kernel::adamw;
use slime_kernel::train_norm::{self, Normed};
use slime_model::ops::attention::attention;
use slime_model::ops::experts::{Experts, train as experts};
use slime_model::ops::head_log_probs::{Fused, Rows, Shaping, Slopes};
use slime_model::ops::qk_norm_rope::{Heads, QkNorm};
use slime_model::ops::route::{self, Router};
use slime_model::ops::silu_mul::silu_mul;
use slime_model::{Context, Model, Segment, Workspace};
use slime_torch::{AdamW, ParamState, backward_with, forget_grad};
use tch::{Kind, Tensor};

use super::{DEVICE, NUM_TOKENS, segments};

/// Elements of the optimizer's part.
const NUM_PARAMETERS: i64 = 1 << 29;

/// Seconds of `work` on the GPU, of one of `repeats`.
pub fn gpu_seconds(repeats: usize, work: &mut dyn FnMut()) -> f64 {
    tch::Cuda::synchronize(0);
    let began = Instant::now();
    for _ in 0..repeats {
        work();
    }
    tch::Cuda::synchronize(0);
    began.elapsed().as_secs_f64() / repeats as f64
}

pub fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    f64::midpoint(seconds[(seconds.len() - 1) / 2], seconds[seconds.len() / 2])
}

/// The median of `repeats` after one that does not count.
fn measured(repeats: usize, work: &mut dyn FnMut()) -> f64 {
    work();
    median((0..repeats).map(|_| gpu_seconds(1, work)).collect())
}

fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::BFloat16, DEVICE))
}

/// Of the GPU at hand.
pub struct Rates {
    /// Of a product of 8,192 rows, columns and terms in bf16, in a burst.
    pub operations: f64,
    /// Bytes read and written by a copy, per second.
    pub bytes: f64,
}

impl Rates {
    pub fn measure() -> Self {
        let (a, b) = (random(&[8192, 8192]), random(&[8192, 8192]));
        let product = measured(20, &mut || drop(a.matmul(&b)));
        let (from, mut to) = (random(&[1 << 31]), random(&[1 << 31]));
        let copy = measured(20, &mut || to.copy_(&from));
        let rates =
            Self { operations: 2.0 * 8192f64.powi(3) / product, bytes: 2.0 * 2.0 * 2f64.powi(31) / copy };
        println!(
            "a product of 8192^3 in bf16: {:.0} TFLOP/s; a copy: {:.2} TB/s",
            rates.operations / 1e12,
            rates.bytes / 1e12
        );
        rates
    }
}

/// Times that a part runs before the host waits for it.
const AT_ONCE: usize = 8;

/// Forward and backward of `function` over `inputs`, whose outputs get gradients drawn once.
fn both_ways(repeats: usize, inputs: &[&Tensor], function: &dyn Fn() -> Vec<Tensor>) -> f64 {
    let grads: Vec<Tensor> = function().iter().map(|out| out.detach().randn_like() * 1e-3).collect();
    let grads: Vec<&Tensor> = grads.iter().collect();
    let mut once = || {
        let outputs = function();
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        for input in inputs {
            forget_grad(input).unwrap();
        }
        backward_with(&outputs, &grads).unwrap();
    };
    once();
    median((0..repeats).map(|_| gpu_seconds(AT_ONCE, &mut once)).collect())
}

fn leaf(size: &[i64]) -> Tensor {
    random(size).set_requires_grad(true)
}

/// Prints every part with its time in a pass over all layers.
pub fn tell(model: &Model, batch: &str, rates: &Rates, repeats: usize) {
    let config = model.config();
    let (t, d, layers) = (NUM_TOKENS as i64, config.hidden_size as i64, config.num_hidden_layers as f64);
    let of_bytes = |what: &str, seconds: f64, times: f64, bytes: f64| {
        let share = bytes / seconds / rates.bytes;
        println!("  {what}: {:.2} ms, {share:.2} of a copy's bandwidth", times * seconds * 1e3);
    };
    let of_operations = |what: &str, seconds: f64, times: f64, operations: f64| {
        let rate = operations / seconds / 1e12;
        println!("  {what}: {:.2} ms, {rate:.0} TFLOP/s", times * seconds * 1e3);
    };
    let (rows, workspace) = ((t * d) as f64, Workspace::default());

    let [x, delta, grad_out, grad_sum] = std::array::from_fn(|_| random(&[t, d]));
    let weight = random(&[d]);
    // Without autograd, which copies a gradient that two leaves share.
    let mut once = || {
        let Normed { sum_td, scale_t, .. } = train_norm::forward(&x, Some(&delta), &weight, 1e-6).unwrap();
        drop(train_norm::backward((&sum_td, &weight, &scale_t), &grad_out, Some(&grad_sum)).unwrap());
    };
    once();
    let norm = median((0..repeats).map(|_| gpu_seconds(AT_ONCE, &mut once)).collect());
    // Residual, delta, sum and norm in bf16; then both gradients, the sum again and its gradient.
    of_bytes("add and norm", norm, 2.0 * layers + 1.0, 16.0 * rows);

    let (seconds, operations) = attention_seconds(config, batch, repeats);
    of_operations("attention with norms of heads and rotation", seconds, layers, operations);

    let product = |out: i64, inputs: i64| {
        let (x, weight) = (leaf(&[t, inputs]), leaf(&[out, inputs]));
        let seconds = both_ways(repeats, &[&x, &weight], &|| vec![x.linear(&weight, None::<&Tensor>)]);
        (seconds, 6.0 * (t * out * inputs) as f64)
    };
    let heads = heads(config);
    let all_heads = (heads.num_q + 2 * heads.num_kv) * heads.head_dim;
    let mut products = vec![product(all_heads, d), product(d, heads.num_q * heads.head_dim)];
    if config.moe.is_none() {
        let m = config.intermediate_size as i64;
        products.extend([product(2 * m, d), product(d, m)]);
        let gate_up = leaf(&[t, 2 * m]);
        let gate = both_ways(repeats, &[&gate_up], &|| vec![silu_mul(&workspace, &gate_up).unwrap()]);
        // Gate, up and their product; then the gradient of the latter, gate and up again and their gradients.
        of_bytes("gate", gate, layers, 16.0 * (t * m) as f64);
    } else {
        let (seconds, operations) = experts_seconds(config, repeats);
        of_operations("router and experts", seconds, layers, operations);
    }
    let (seconds, operations) =
        products.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    of_operations("other products", seconds, layers, operations);
    let (seconds, operations) = head_seconds(model, repeats);
    of_operations("head with loss", seconds, 1.0, operations);
    tell_optimizer(model, repeats, &of_bytes);
}

fn heads(config: &HfConfig) -> Heads {
    Heads {
        num_q: config.num_attention_heads as i64,
        num_kv: config.num_key_value_heads as i64,
        head_dim: config.head_dim as i64,
        is_interleaved: false,
    }
}

fn attention_seconds(config: &HfConfig, batch: &str, repeats: usize) -> (f64, f64) {
    let (heads, segments) = (heads(config), segments(batch));
    let t = segments.iter().map(|segment| segment.len as i64).sum::<i64>();
    let qkv = leaf(&[t, (heads.num_q + 2 * heads.num_kv) * heads.head_dim]);
    let scope = config.qk_norm.unwrap();
    let weight = || leaf(&[heads.head_dim]);
    let norm = QkNorm { q_k: weight(), k_k: weight(), scope, eps: 1e-6, group: None };
    let mut context = Context::packed(&segments, Kind::BFloat16, DEVICE).unwrap();
    let angles = Tensor::rand([t, heads.head_dim / 2], (Kind::Float, DEVICE));
    let cos_sin = (angles.cos(), angles.sin());
    let context = std::cell::RefCell::new(&mut context);
    let seconds = both_ways(repeats, &[&qkv, &norm.q_k, &norm.k_k], &|| {
        let mut context = context.borrow_mut();
        vec![attention(&mut context, 0, qkv.shallow_clone(), (heads, Some(&norm)), &cos_sin).unwrap()]
    });
    let pairs = |segment: &Segment| {
        let (len, before) = (segment.len as f64, segment.prefix.map_or(0.0, |(_, len)| len as f64));
        len * before + len * (len + 1.0) / 2.0
    };
    let pairs: f64 = segments.iter().map(pairs).sum();
    (seconds, 3.0 * 4.0 * (heads.num_q * heads.head_dim) as f64 * pairs)
}

fn experts_seconds(config: &HfConfig, repeats: usize) -> (f64, f64) {
    let moe = config.moe.as_ref().unwrap();
    let (t, d, m) = (NUM_TOKENS as i64, config.hidden_size as i64, moe.intermediate_size as i64);
    let e = moe.num_experts as i64;
    let small = |size: &[i64]| (random(size) * 0.02).set_requires_grad(true);
    let (x, router, gate_up, down) =
        (leaf(&[t, d]), small(&[e, d]), small(&[e * 2 * m, d]), small(&[e * d, m]));
    let layer = Router::new(router.shallow_clone(), None, moe);
    let own = Experts::new(gate_up.shallow_clone(), down.shallow_clone(), moe.num_experts).unwrap();
    let seconds = both_ways(repeats, &[&x, &router, &gate_up, &down], &|| {
        let routed = route::reference(&layer, &x, None).unwrap();
        vec![experts(&own, &x, &routed).unwrap()]
    });
    (seconds, 6.0 * (t * d) as f64 * (3 * m * moe.top_k as i64 + e) as f64)
}

fn head_seconds(model: &Model, repeats: usize) -> (f64, f64) {
    let (config, t) = (model.config(), NUM_TOKENS as i64);
    let hidden_rd = leaf(&[t, config.hidden_size as i64]);
    let targets_r = Tensor::randint(config.vocab_size as i64, [t], (Kind::Int64, DEVICE));
    let weight = model.params().get("head").unwrap().set_requires_grad(true);
    let mut slopes = |chunk: Rows<'_>| {
        let log_probs_r = chunk.log_probs_r.full_like(-1.0 / t as f64);
        Ok::<_, slime_model::Error>(Slopes {
            loss: (chunk.log_probs_r * &log_probs_r).sum(None),
            log_probs_r,
            entropy_r: None,
        })
    };
    let seconds = measured(repeats, &mut || {
        let Fused { loss, .. } =
            model.head_loss(&hidden_rd, &targets_r, &Shaping::at(1.0), &mut slopes).unwrap();
        for input in [&hidden_rd, &weight] {
            forget_grad(input).unwrap();
        }
        loss.backward();
    });
    let _ = weight.set_requires_grad(false);
    (seconds, 6.0 * (t * (config.hidden_size * config.vocab_size) as i64) as f64)
}

/// The norm of gradients and the update, over as many elements as the model has.
fn tell_optimizer(model: &Model, repeats: usize, of_bytes: &dyn Fn(&str, f64, f64, f64)) {
    let f32s = || Tensor::randn([NUM_PARAMETERS], (Kind::Float, DEVICE)) * 1e-3;
    let [grad, master, first] = std::array::from_fn(|_| f32s());
    let (second, param) = (f32s().square(), random(&[NUM_PARAMETERS]));
    let num = NUM_PARAMETERS as f64;
    let times = model.params().num_parameters() as f64 / num;
    let norm = measured(repeats, &mut || _ = adamw::global_norm(std::slice::from_ref(&grad)).unwrap());
    of_bytes("norm of gradients", norm, times, 4.0 * num);
    let rates = AdamW { lr: 1e-6, beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.0 };
    let state = ParamState { param: &param, grad: &grad, master: &master, first: &first, second: &second };
    let update = measured(repeats, &mut || adamw::step(&[state], &rates, 10, 0.5).unwrap());
    // Gradient, master and two moments read; the three and the weights written.
    of_bytes("AdamW, clipping", update, times, 30.0 * num);
}
