//! Operations under autograd on a GPU, values and gradients, against their definitions in f64 on the CPU.
//! `SLIME_REQUIRE_CUDA=1` makes a missing GPU a failure; without it these tests say so and check nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_config::QkNormScope;
use slime_model::ops::qk_norm_rope::{Heads, QkNorm};
use slime_model::ops::{add_norm, attention, silu_mul};
use slime_model::{Context, Segment, Workspace};
use slime_torch::backward_with;
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);
const KINDS: [(Kind, f64); 2] = [(Kind::Float, 1e-4), (Kind::BFloat16, 1.5e-2)];

/// Numbers like normal ones, the same in every run, rounded to `kind`.
fn numbers(size: &[i64], seed: f64, kind: Kind) -> Tensor {
    let at = Tensor::arange(size.iter().product::<i64>(), (Kind::Double, Device::Cpu)) * 12.9898 + seed;
    let uniform: Tensor = (at.sin() * 43_758.545_3).frac().abs();
    ((uniform - 0.5) * 3.0).view(size).to_kind(kind)
}

fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    let wide = |x: &Tensor| x.detach().to_kind(Kind::Double).to_device(Device::Cpu);
    let (got, expected) = (wide(got), wide(expected));
    assert_eq!(got.size(), expected.size());
    (&got - &expected).norm().double_value(&[]) / expected.norm().double_value(&[]).max(1e-9)
}

/// Outputs of `function` over `inputs`, and the gradients of all inputs for outputs' gradients that are the same everywhere.
fn both_ways(
    inputs: &[Tensor],
    (kind, device): (Kind, Device),
    function: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let leaf = |x: &Tensor| x.to_kind(kind).to_device(device).set_requires_grad(true);
    let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
    let mut outputs = function(&leaves);
    let grad = |(at, out): (usize, &Tensor)| {
        numbers(&out.size(), 5.0 + at as f64, Kind::BFloat16).to_kind(out.kind()).to_device(device)
    };
    let grads: Vec<Tensor> = outputs.iter().enumerate().map(grad).collect();
    let (of, given): (Vec<&Tensor>, Vec<&Tensor>) = (outputs.iter().collect(), grads.iter().collect());
    backward_with(&of, &given).unwrap();
    outputs.extend(leaves.iter().map(Tensor::grad));
    outputs
}

/// The largest distance between a GPU in `kind` and the CPU in f64, and which tensor that is of.
fn worst(inputs: &[Tensor], kind: Kind, function: &dyn Fn(&[Tensor]) -> Vec<Tensor>) -> (f64, usize) {
    let got = both_ways(inputs, (kind, GPU), function);
    let expected = both_ways(inputs, (Kind::Double, Device::Cpu), function);
    let distances = got.iter().zip(&expected).map(|(got, expected)| distance(got, expected));
    distances
        .enumerate()
        .map(|(at, x)| (x, at))
        .fold((0.0, 0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a })
}

#[test]
fn add_and_norm_have_the_gradients_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for (kind, tolerance) in KINDS {
        for (rows, width) in [(1, 8), (3, 576), (700, 1024), (1, 4096), (1500, 4096), (5, 8192)] {
            let matrix = |seed| numbers(&[rows, width], seed, kind);
            let inputs = [matrix(1.0), matrix(2.0), numbers(&[width], 3.0, kind)];
            let with_delta = |x: &[Tensor]| {
                let (sum, normed) =
                    add_norm::add_norm(&Workspace::default(), x[0].shallow_clone(), Some(&x[1]), &x[2], 1e-6)
                        .unwrap();
                vec![sum, normed]
            };
            let (error, at) = worst(&inputs, kind, &with_delta);
            assert!(error < tolerance, "{kind:?} {rows} x {width}, tensor {at}: {error:e}");
            let alone = |x: &[Tensor]| {
                let (sum, normed) =
                    add_norm::add_norm(&Workspace::default(), x[0].shallow_clone(), None, &x[1], 1e-6)
                        .unwrap();
                // The residual goes on beside its norm.
                vec![&sum * 2.0, normed]
            };
            let inputs = [matrix(1.0), numbers(&[width], 3.0, kind)];
            let (error, at) = worst(&inputs, kind, &alone);
            assert!(error < tolerance, "{kind:?} {rows} x {width} alone, tensor {at}: {error:e}");
        }
    }
}

#[test]
fn gate_has_the_gradient_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for (kind, tolerance) in KINDS {
        for (rows, width) in [(1, 8), (33, 1536), (300, 12_288)] {
            let inputs = [numbers(&[rows, 2 * width], 1.0, kind) * 2.0];
            let gate = |x: &[Tensor]| vec![silu_mul::silu_mul(&Workspace::default(), &x[0]).unwrap()];
            let (error, at) = worst(&inputs, kind, &gate);
            assert!(error < tolerance, "{kind:?} {rows} x {width}, tensor {at}: {error:e}");
        }
    }
}

/// Sequences alone and behind prompts that several share.
fn batches() -> Vec<(&'static str, Vec<Segment>)> {
    let alone = |lens: &[usize]| {
        let mut start = 0;
        let segment = |len: &usize| {
            start += len;
            Segment::alone(start - len, *len)
        };
        lens.iter().map(segment).collect::<Vec<_>>()
    };
    let prompt = |start: usize, len: usize, responses: &[usize]| {
        let mut segments = vec![Segment::alone(start, len)];
        let mut next = start + len;
        for response in responses {
            segments.push(Segment::after((start, len), next, *response));
            next += response;
        }
        segments
    };
    let mut two_groups = prompt(0, 70, &[30, 1, 200]);
    two_groups.extend(prompt(301, 5, &[9, 130]));
    vec![
        ("two tokens", alone(&[2])),
        ("of all lengths", alone(&[1, 300, 17, 128, 5])),
        ("even", alone(&[256; 3])),
        ("even, odd length", alone(&[131; 4])),
        ("shared prompts", two_groups),
    ]
}

#[test]
fn attention_from_the_projection_has_the_gradients_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for (kind, tolerance) in KINDS {
        for (num_q, num_kv, head_dim) in [(9, 3, 64), (8, 1, 128), (4, 2, 32), (4, 4, 128)] {
            for (name, segments) in batches() {
                for has_norm in [true, false] {
                    let heads = Heads { num_q, num_kv, head_dim, is_interleaved: false };
                    let t: usize = segments.iter().map(|segment| segment.len).sum();
                    let width = (num_q + 2 * num_kv) * head_dim;
                    let weight = |seed| numbers(&[head_dim], seed, kind) * 0.2 + 1.0;
                    let inputs = [numbers(&[t as i64, width], 1.0, kind), weight(2.0), weight(3.0)]
                        .map(|x| x.to_kind(kind));
                    let angles = numbers(&[t as i64, head_dim / 2], 4.0, Kind::Float);
                    let function = |x: &[Tensor]| {
                        let (device, own) = (x[0].device(), x[0].kind());
                        let mut context = Context::packed(&segments, own, device).unwrap();
                        let wide = if own == Kind::Double { own } else { Kind::Float };
                        // Both round them to the type of the heads.
                        let angle = |x: Tensor| x.to_kind(kind).to_kind(wide).to_device(device);
                        let cos_sin = (angle(angles.cos()), angle(angles.sin()));
                        let (scope, eps) = (QkNormScope::Head, 1e-6);
                        let [q_k, k_k] = [1, 2].map(|at| x[at].shallow_clone());
                        let norm = QkNorm { q_k, k_k, scope, eps, group: None };
                        let norm = has_norm.then_some(&norm);
                        let qkv = x[0].shallow_clone();
                        let out =
                            attention::attention(&mut context, 0, qkv, (heads, norm), &cos_sin).unwrap();
                        // Weights of norms that are not there have a gradient of 0.
                        let none = (&x[1] + &x[2]).sum(own) * 0.0;
                        vec![out + none]
                    };
                    let (error, at) = worst(&inputs, kind, &function);
                    assert!(
                        error < 2.0 * tolerance,
                        "{kind:?}, {num_q} heads of {head_dim}, {name}, norms {has_norm}, tensor {at}: {error:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn selective_recomputation_gives_the_same_bits() {
    if !gate::has_gpu() {
        return;
    }
    // Heads that the fused kernels do not know, so that there is something to compute again.
    let (heads, t) = (Heads { num_q: 4, num_kv: 2, head_dim: 32, is_interleaved: false }, 301);
    let (_, segments) = batches().pop().unwrap();
    let qkv = numbers(&[t + 144, 8 * 32], 1.0, Kind::BFloat16);
    let angles = numbers(&[t + 144, 16], 4.0, Kind::Float).to_device(GPU);
    let cos_sin = (angles.cos(), angles.sin());
    let of = |is_recomputed: bool| {
        both_ways(std::slice::from_ref(&qkv), (Kind::BFloat16, GPU), &|x: &[Tensor]| {
            let mut context = Context::packed(&segments, Kind::BFloat16, GPU).unwrap();
            if is_recomputed {
                context = context.recomputing_ops();
            }
            vec![
                attention::attention(&mut context, 0, x[0].shallow_clone(), (heads, None), &cos_sin).unwrap(),
            ]
        })
    };
    let (kept, recomputed) = (of(false), of(true));
    assert!(kept[0].equal(&recomputed[0]));
    assert!(distance(&kept[1], &recomputed[1]) < 1e-2);
}
