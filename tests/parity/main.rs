//! The composed model against Hugging Face's numbers, and its ways of running against each other.
#![allow(clippy::unwrap_used, missing_docs)]

mod layouts;
mod routes;
mod split;
mod transformers;

use std::path::PathBuf;

use slime_model::{Context, Model, Routes, Segment, Shaping};
use slime_weights::WeightDir;
use tch::{Device, Kind, Tensor};

/// One row for each family and form of it; `tests/fixtures/make_models.py` makes them.
const FAMILIES: [&str; 10] = [
    "llama_tied",
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "glm4",
    "glm4_moe",
    "glm45_air",
    "minimax_m2",
    "mimo",
];

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = if root.join("tests/fixtures").exists() { root } else { root.join("../..") };
    root.join("tests/fixtures/models").join(name)
}

fn load(name: &str, kind: Kind) -> Model {
    Model::load(fixture(name), kind, Device::Cpu).unwrap()
}

/// A golden tensor in f32.
fn golden(dir: &WeightDir, name: &str) -> Tensor {
    let view = dir.tensor(name).unwrap();
    let shape: Vec<i64> = view.shape.iter().map(|n| *n as i64).collect();
    let kind = if view.dtype == slime_weights::Dtype::I32 { Kind::Int } else { Kind::Float };
    Tensor::from_data_size(&view.bytes, &shape, kind)
}

fn max_diff(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[])
}

fn ids(len: i64, seed: i64) -> Tensor {
    (Tensor::arange(len, (Kind::Int64, Device::Cpu)) * 37 + seed * 11).remainder(90) + 3
}

/// The mean of the negative log-probs of `targets` as the hidden states `rows` predict them.
fn loss(model: &Model, hidden: &Tensor, rows: &[i64], targets: &Tensor) -> Tensor {
    let hidden = hidden.index_select(0, &Tensor::from_slice(rows));
    let (log_probs, _) = model.head_log_probs(&hidden, targets, &Shaping::at(1.0)).unwrap();
    -log_probs.mean(None)
}

fn grads(model: &Model) -> Vec<(String, Tensor)> {
    model.params().grad_views().unwrap().into_iter().map(|(name, grad)| (name, grad.copy())).collect()
}

/// Hidden states of the responses, the loss over their tokens, and its gradients; prompts shared or repeated.
fn group(
    model: &mut Model,
    prompt: i64,
    responses: &[i64],
    is_shared: bool,
) -> (Tensor, Vec<(String, Tensor)>) {
    let (mut segments, mut tokens, mut rows, mut targets) = (vec![], vec![], vec![], vec![]);
    let mut at = 0usize;
    let p = prompt as usize;
    for (i, len) in responses.iter().enumerate() {
        let (n, response) = (*len as usize, ids(*len, 5 + i as i64));
        if is_shared {
            if i == 0 {
                segments.push(Segment::alone(0, p));
                tokens.push(ids(prompt, 1));
                at = p;
            }
            segments.push(Segment::after((0, p), at, n));
            tokens.push(response.shallow_clone());
            rows.push(prompt - 1);
            rows.extend((0..n - 1).map(|j| (at + j) as i64));
            at += n;
        } else {
            segments.push(Segment::alone(at, p + n));
            tokens.extend([ids(prompt, 1), response.shallow_clone()]);
            rows.extend((0..n).map(|j| (at + p - 1 + j) as i64));
            at += p + n;
        }
        targets.push(response);
    }
    model.params_mut().zero_grad();
    model.params().set_requires_grad(true);
    let kind = model.params().kind();
    let mut context = Context::packed(&segments, kind, Device::Cpu).unwrap();
    let hidden = model.forward(&mut context, &Tensor::cat(&tokens, 0)).unwrap();
    loss(model, &hidden, &rows, &Tensor::cat(&targets, 0)).backward();
    (hidden.detach().index_select(0, &Tensor::from_slice(&rows)), grads(model))
}

/// `context` with the experts of its tokens, the first of which is token `start` of `routes`.
fn replaying<'a>(model: &Model, context: Context<'a>, routes: Option<&[u16]>, start: usize) -> Context<'a> {
    let (Some(ids), Some(moe)) = (routes, &model.config().moe) else { return context };
    let shape = [context.num_tokens(), moe.layers.len(), moe.top_k];
    let width = shape[1] * shape[2];
    let routes = Routes::new(&ids[start * width..(start + shape[0]) * width], shape).unwrap();
    context.replaying_routes(routes).unwrap()
}
