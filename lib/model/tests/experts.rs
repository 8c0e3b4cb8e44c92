//! Routing and experts on a GPU, where the experts are one grouped product in bf16, against the CPU.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_config::{Moe, Scoring};
use slime_model::ops::experts::{self, Experts};
use slime_model::ops::route::{self, Router};
use tch::{Device, Kind, Tensor};

/// Tokens, hidden size, width of an expert, experts, experts of a token. The second has rows that the grouped kernel cannot
/// load.
const SHAPES: [[i64; 5]; 5] =
    [[1, 64, 32, 8, 2], [5, 32, 12, 6, 2], [3, 128, 48, 128, 8], [257, 256, 96, 6, 2], [1000, 64, 64, 16, 4]];

fn moe([_, _, m, e, k]: [i64; 5]) -> Moe {
    Moe {
        num_experts: e as usize,
        top_k: k as usize,
        intermediate_size: m as usize,
        shared_intermediate_size: 0,
        scoring: Scoring::Sigmoid { has_bias: true },
        n_group: 2,
        topk_group: 2,
        norm_topk_prob: true,
        routed_scaling_factor: 2.5,
        layers: vec![0],
    }
}

/// Output, gradients of the input, of the router and of the experts, in f64 on the host.
fn run(shape: [i64; 5], kind: Kind, device: Device, is_definition: bool) -> Vec<Tensor> {
    let [t, d, m, e, _] = shape;
    let wave = |size: &[i64], step: f64, scale: f64| {
        let count: i64 = size.iter().product();
        let wave = (Tensor::arange(count, (Kind::Double, Device::Cpu)) * step).sin() * scale;
        // Rounded on the way, so that both see the same numbers.
        wave.view(size).to_kind(Kind::BFloat16).to_kind(kind).to_device(device)
    };
    let leaf = |tensor: Tensor| tensor.set_requires_grad(true);
    let (x, weight) = (leaf(wave(&[t, d], 12.9898, 1.0)), leaf(wave(&[e, d], 4.137, 0.3)));
    let gate_up = leaf(wave(&[e * 2 * m, d], 78.233, (d as f64).powf(-0.5)));
    let down = leaf(wave(&[e * d, m], 3.771, (m as f64).powf(-0.5)));
    let bias = wave(&[e], 1.7, 0.1).to_kind(if kind == Kind::Double { kind } else { Kind::Float });
    let router = Router::new(weight.shallow_clone(), Some(bias), &moe(shape));
    let experts = Experts::new(gate_up.shallow_clone(), down.shallow_clone(), e as usize).unwrap();
    let routed = route::reference(&router, &x, None).unwrap();
    let op = if is_definition { experts::reference } else { experts::train };
    let out = op(&experts, &x, &routed).unwrap();
    (out.to_kind(Kind::Float) * wave(&[t, d], 0.77, 1.0).to_kind(Kind::Float)).sum(None).backward();
    let host = |tensor: Tensor| tensor.detach().to_device(Device::Cpu).to_kind(Kind::Double);
    [out, x.grad(), weight.grad(), gate_up.grad(), down.grad()].into_iter().map(host).collect()
}

#[test]
fn grouped_experts_on_a_gpu_are_near_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for shape in SHAPES {
        // bf16 is held to how far the CPU's is from the definition: rounding alone moves these waves by up to a tenth. The router's gradient is a small difference of large numbers, which f32 has to show.
        let in_bf16 = run(shape, Kind::BFloat16, Device::Cpu, false);
        let exact = run(shape, Kind::Double, Device::Cpu, true);
        let distance = |got: &Tensor, want: &Tensor| {
            (got - want).norm().double_value(&[]) / want.norm().double_value(&[]).max(1e-9)
        };
        let of_rounding: Vec<f64> =
            in_bf16.iter().zip(&exact).map(|(got, want)| distance(got, want)).collect();
        for kind in [Kind::BFloat16, Kind::Float] {
            let got = run(shape, kind, Device::Cuda(0), false);
            for (at, (got, want)) in got.iter().zip(&exact).enumerate() {
                let bound = if kind == Kind::Float { 1e-3 } else { (2.0 * of_rounding[at]).max(3e-2) };
                let diff = distance(got, want);
                assert!(
                    diff < bound || at == 2 && kind == Kind::BFloat16,
                    "{shape:?} in {kind:?}: {at} differs by {diff}, bound {bound}"
                );
            }
        }
    }
}

#[test]
fn definition_and_sorted_experts_agree_on_a_host_in_every_shape() {
    for shape in SHAPES {
        let want = run(shape, Kind::Double, Device::Cpu, true);
        for (at, (got, want)) in run(shape, Kind::Double, Device::Cpu, false).iter().zip(&want).enumerate() {
            let diff = (got - want).abs().max().double_value(&[]);
            assert!(diff < 1e-5, "{shape:?}: {at} differs by {diff}");
        }
    }
}
