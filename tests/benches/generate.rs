//! Decode and training speed of a model on this machine against the time of its bare matrix products.
//!
//! Usage: `cargo bench -p slime-model --bench generate -- WEIGHTS_DIR [SEQUENCES] [CONTEXT_LEN]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::time::Instant;

use slime_model::{Context, KvCache, Model, Segment};
use tch::{Device, Kind, Tensor};

const REPEATS: usize = 5;

/// Best seconds of several runs, the first not counted.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    let time = |()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    std::iter::repeat_n((), REPEATS).map(time).fold(f64::INFINITY, f64::min)
}

/// Every matrix product of a forward pass of `rows` tokens, and of the head for `head_rows` of them.
fn bare_products(model: &Model, rows: i64, head_rows: i64) -> f64 {
    let matrices: Vec<Tensor> = model
        .params()
        .iter()
        .filter(|(spec, _)| spec.shape.len() == 2 && spec.name != "embed" && spec.name != "head")
        .map(|(_, tensor)| tensor.shallow_clone())
        .collect();
    let head = model.params().find("head").unwrap_or_else(|| model.params().get("embed").unwrap());
    let inputs = |matrix: &Tensor, rows| Tensor::ones([rows, matrix.size()[1]], (matrix.kind(), Device::Cpu));
    best(|| {
        for matrix in &matrices {
            let _ = inputs(matrix, rows).linear(matrix, None::<&Tensor>);
        }
        let _ = inputs(&head, head_rows).linear(&head, None::<&Tensor>);
    })
}

fn decode(model: &Model, sequences: usize, context_len: usize) {
    const BLOCK_SIZE: usize = 16;
    let blocks = context_len.div_ceil(BLOCK_SIZE);
    let mut kv =
        KvCache::new(model.config(), sequences * blocks, BLOCK_SIZE, Kind::Float, Device::Cpu).unwrap();
    let tables: Vec<Vec<u32>> =
        (0..sequences).map(|s| (0..blocks).map(|b| (s * blocks + b) as u32).collect()).collect();
    let (q_lens, context_lens) = (vec![1; sequences], vec![context_len as u32; sequences]);
    let tokens = Tensor::from_slice(&vec![7i64; sequences]);
    let step = best(|| {
        let mut context = Context::paged(&mut kv, &tables, &q_lens, &context_lens).unwrap();
        let hidden = model.forward(&mut context, &tokens).unwrap();
        let _ = model.logits(&hidden).unwrap();
    });
    let bare = bare_products(model, sequences as i64, sequences as i64);
    println!(
        "decode {sequences} x {context_len}: {:.1} ms, {:.0} tokens/s, {:.0} % of the bare products ({:.1} ms)",
        step * 1e3,
        sequences as f64 / step,
        bare / step * 100.0,
        bare * 1e3
    );
}

fn train(model: &mut Model, prompt_len: usize, responses: usize, response_len: usize) {
    let mut segments = vec![Segment::alone(0, prompt_len)];
    segments.extend(
        (0..responses).map(|i| Segment::after((0, prompt_len), prompt_len + i * response_len, response_len)),
    );
    let total = (prompt_len + responses * response_len) as i64;
    let tokens = Tensor::arange(total, (Kind::Int64, Device::Cpu)) + 5;
    let kind = model.params().kind();
    model.params().set_requires_grad(true);
    let (mut forward, mut head, mut backward) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let start = Instant::now();
        let mut context = Context::packed(&segments, kind, Device::Cpu).unwrap();
        let hidden = model.forward(&mut context, &tokens).unwrap();
        forward = forward.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let rows = hidden.narrow(0, 0, total - 1);
        let (log_probs, entropy) = model.head_log_probs(&rows, &tokens.narrow(0, 1, total - 1), 1.0).unwrap();
        head = head.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        (log_probs.mean(None) + entropy.mean(None) * 0.01).backward();
        backward = backward.min(start.elapsed().as_secs_f64());
    }
    model.params().set_requires_grad(false);
    model.params_mut().zero_grad();
    let bare = tch::no_grad(|| bare_products(model, total, total));
    println!(
        "train {total} tokens ({responses} responses of {response_len}): forward {forward:.2} s, head {head:.2} s, \
         backward {backward:.2} s; {:.0} tokens/s, bare products of a forward pass {bare:.2} s, {:.0} % of 3 of them",
        total as f64 / (forward + head + backward),
        300.0 * bare / (forward + head + backward)
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let Some(dir) = arguments.first() else {
        println!("no weight directory given, nothing measured");
        return;
    };
    let number = |at: usize, default| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let mut model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    tch::no_grad(|| {
        for sequences in [1, number(1, 64)] {
            decode(&model, sequences, number(2, 256));
        }
    });
    train(&mut model, 40, 16, 16);
    train(&mut model, 64, 4, 256);
}
