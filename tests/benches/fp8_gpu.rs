//! Products of training in fp8 on a GPU, with all casts, forward and both gradients, beside the same in bf16 and beside the bare fp8
//! products: the linear layers of Qwen3-8B, the experts of Qwen3-30B-A3B.
//!
//! `cargo bench --workspace --bench fp8_gpu` (`tests/gpu/fp8.sh` runs it with the libraries it needs); `TOKENS` (`16384`) and
//! `REPEATS` (7) choose.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "rival/mod.rs"]
mod rival;

use std::time::Instant;

use rival::setting;
use slime_kernel::fp8_cast::{Cast, Copies, Format, Scaling, cast};
use slime_model::ops::experts::{Experts, train as experts};
use slime_model::ops::fp8::{Fp8, Mode};
use slime_model::ops::linear;
use slime_model::ops::route::Routed;
use slime_torch::{backward_with, cuda, forget_grad};
use tch::{Device, Kind, Tensor};

const DEVICE: Device = Device::Cuda(0);
/// Times that a part runs before the host waits for it.
const AT_ONCE: usize = 8;
/// Name, inputs, outputs.
const LINEARS: [(&str, i64, i64); 4] =
    [("qkv", 4096, 6144), ("o_proj", 4096, 4096), ("gate_up", 4096, 24576), ("down", 12288, 4096)];
const MODES: [Option<Mode>; 3] = [None, Some(Mode::Delayed), Some(Mode::Block)];

fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::BFloat16, DEVICE))
}

/// The median of the seconds of `work` on the GPU.
fn seconds(repeats: usize, work: &mut dyn FnMut()) -> f64 {
    let mut once = || {
        tch::Cuda::synchronize(0);
        let began = Instant::now();
        (0..AT_ONCE).for_each(|_| work());
        tch::Cuda::synchronize(0);
        began.elapsed().as_secs_f64() / AT_ONCE as f64
    };
    once();
    let mut times: Vec<f64> = (0..repeats).map(|_| once()).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn state() -> [Tensor; 2] {
    let scales = [5.0f32, 0.1, 1e-2].map(|largest| [largest / 448.0, 0.0, 0.0, 0.0]).concat();
    [Tensor::from_slice(&scales).to_device(DEVICE), Tensor::zeros([12], (Kind::Float, DEVICE))]
}

/// Forward and backward of `function`, whose leaves are forgotten between.
fn both_ways(repeats: usize, leaves: &[&Tensor], function: &dyn Fn() -> Tensor) -> f64 {
    let grad = function().detach().randn_like() * 1e-3;
    seconds(repeats, &mut || {
        let out = function();
        for leaf in leaves {
            forget_grad(leaf).unwrap();
        }
        backward_with(&[&out], &[&grad]).unwrap();
    })
}

fn linears(tokens: i64, repeats: usize) {
    let mut sums = [0.0; 4];
    for (name, inputs, outputs) in LINEARS {
        let x = random(&[tokens, inputs]).set_requires_grad(true);
        let weight = (random(&[outputs, inputs]) * 0.02).set_requires_grad(true);
        let times = MODES.map(|mode| {
            let state = state();
            let scales: Vec<&Tensor> =
                if mode == Some(Mode::Delayed) { state.iter().collect() } else { vec![] };
            both_ways(repeats, &[&x, &weight], &|| linear::train(&x, (&weight, None), mode, &scales).unwrap())
        });
        let bare = bare([tokens, inputs, outputs], repeats);
        tell(name, 6.0 * (tokens * inputs * outputs) as f64, times, bare);
        for (sum, time) in sums.iter_mut().zip(times.into_iter().chain([bare])) {
            *sum += time;
        }
    }
    let all: i64 = LINEARS.iter().map(|(_, inputs, outputs)| inputs * outputs).sum();
    tell("all of a layer", 6.0 * (tokens * all) as f64, [sums[0], sums[1], sums[2]], sums[3]);
}

/// The three products alone, of codes with one scale each.
fn bare([tokens, inputs, outputs]: [i64; 3], repeats: usize) -> f64 {
    let one = Tensor::from_slice(&[1.0f32]).to_device(DEVICE);
    let codes = |size: [i64; 2]| {
        let scaling = Scaling::Given(&one, &one);
        let of =
            Cast { format: Format::E4m3, scaling, copies: Copies::Rows, row_multiple: 16, largest: None };
        let [rows, _] = cast(&random(&size), &of).unwrap();
        rows.unwrap().codes
    };
    let pairs = [[tokens, outputs, inputs], [tokens, inputs, outputs], [outputs, inputs, tokens]];
    let pairs = pairs.map(|[m, n, k]| (codes([m, k]), codes([n, k])));
    seconds(repeats, &mut || {
        for (a, b) in &pairs {
            let none = None::<&Tensor>;
            drop(a.f_internal_scaled_mm(&b.tr(), &one, &one, none, none, Kind::BFloat16, true).unwrap());
        }
    })
}

fn tell(name: &str, operations: f64, [bf16, tensor, block]: [f64; 3], bare: f64) {
    let rate = |seconds: f64| operations / seconds / 1e12;
    println!(
        "{name}: bf16 {:.2} ms ({:.0} TFLOP/s), fp8 by tensor {:.2} ms ({:.2} x), by block {:.2} ms ({:.2} x), bare products \
         {:.2} ms ({:.2} x)",
        bf16 * 1e3,
        rate(bf16),
        tensor * 1e3,
        bf16 / tensor,
        block * 1e3,
        bf16 / block,
        bare * 1e3,
        bf16 / bare
    );
}

fn mixture(tokens: i64, repeats: usize) {
    let (e, k, d, m) = (128, 8, 2048, 768);
    let x = random(&[tokens, d]).set_requires_grad(true);
    let leaf = |size: &[i64]| (random(size) * 0.02).set_requires_grad(true);
    let (gate_up, down) = (leaf(&[e * 2 * m, d]), leaf(&[e * d, m]));
    let (_, ids_tk) = random(&[tokens, e]).topk(k, 1, true, false);
    let weights_tk = (ids_tk.ones_like().to_kind(Kind::Float) / k as f64).set_requires_grad(true);
    let times = MODES.map(|mode| {
        let mut all = Experts::new(gate_up.shallow_clone(), down.shallow_clone(), e as usize).unwrap();
        let fp8 = |mode| Fp8 { mode, state: (mode != Mode::Block).then(state) };
        all.set_fp8(mode.map(|mode| [fp8(mode), fp8(mode)]));
        let routed = Routed { ids_tk: ids_tk.shallow_clone(), weights_tk: weights_tk.shallow_clone() };
        both_ways(repeats, &[&x, &weights_tk, &gate_up, &down], &|| experts(&all, &x, &routed).unwrap())
    });
    bare_mixture([e, tokens * k, d, m], repeats);
    let operations = (6 * tokens * k * 3 * d * m) as f64;
    let [bf16, tensor, block] = times;
    println!(
        "experts: bf16 {:.2} ms ({:.0} TFLOP/s), fp8 by tensor {:.2} ms ({:.2} x), by row {:.2} ms ({:.2} x)",
        bf16 * 1e3,
        operations / bf16 / 1e12,
        tensor * 1e3,
        bf16 / tensor,
        block * 1e3,
        bf16 / block
    );
}

/// The first product alone, with as many rows for each expert.
fn bare_mixture([e, rows, d, m]: [i64; 4], repeats: usize) {
    let ends = (Tensor::arange(e, (Kind::Int, DEVICE)) + 1) * (rows / e);
    let ends = ends.to_kind(Kind::Int);
    let (x, weight) = (random(&[rows, d]), random(&[e, 2 * m, d]));
    let bf16 = seconds(repeats, &mut || {
        drop(x.f_internal_grouped_mm(&weight.transpose(1, 2), Some(&ends), None, None).unwrap());
    });
    let one = Tensor::from_slice(&[1.0f32]).to_device(DEVICE);
    let codes = |x: &Tensor| {
        let scaling = Scaling::Given(&one, &one);
        let of =
            Cast { format: Format::E4m3, scaling, copies: Copies::Rows, row_multiple: 16, largest: None };
        let [rows, _] = cast(x, &of).unwrap();
        rows.unwrap().codes
    };
    let of_cast = seconds(repeats, &mut || drop(codes(&weight)));
    let (x, weight) = (codes(&x), codes(&weight));
    let scales = |size: &[i64]| Tensor::ones(size, (Kind::Float, DEVICE));
    let (of_rows, of_weight, none) = (scales(&[rows]), scales(&[e, 2 * m]), None::<&Tensor>);
    let fp8 = seconds(repeats, &mut || {
        let matrices = weight.transpose(1, 2);
        let out = x.f_internal_scaled_grouped_mm(
            &matrices,
            &of_rows,
            &of_weight,
            Some(&ends),
            none,
            none,
            Kind::BFloat16,
            true,
        );
        drop(out.unwrap());
    });
    println!(
        "their first product alone: bf16 {:.2} ms, fp8 {:.2} ms ({:.2} x); its weight as codes {:.2} ms",
        bf16 * 1e3,
        fp8 * 1e3,
        bf16 / fp8,
        of_cast * 1e3
    );
}

fn main() {
    if let Err(error) = cuda::open() {
        println!("not measured: {error}");
        return;
    }
    let (tokens, repeats) = (setting("TOKENS", 16_384), setting("REPEATS", 7));
    println!("{tokens} tokens");
    linears(tokens, repeats);
    mixture(tokens, repeats);
}
