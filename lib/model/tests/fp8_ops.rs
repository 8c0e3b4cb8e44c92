//! fp8 on a GPU against its definition: codes and scales to the bit, products within their rounding; weights in fewer bits against
//! what is published.
//! `SLIME_REQUIRE_CUDA=1` makes a missing GPU a failure; without it these tests say so and check nothing.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_kernel::fake_int4::fake_int4;
use slime_kernel::fp8_cast::{Cast, Codes, Copies, Format, Scaling, cast, reference};
use slime_kernel::kv_fp8;
use slime_kernel::qk_norm_rope::{self, Norm, Places};
use slime_model::ops::experts::{Experts, train as experts};
use slime_model::ops::fp8::{Fp8, Mode};
use slime_model::ops::fp8_linear;
use slime_model::ops::route::Routed;
use slime_weights::{QuantisedForm, Quantiser};
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

/// Numbers around 0, a tenth to ten times as large as others, bf16.
fn drawn(size: &[i64], seed: i64) -> Tensor {
    // Uniform numbers that depend on the seed alone.
    let len = size.iter().product::<i64>();
    let uniform = |seed: f64| {
        let at = Tensor::arange(len, (Kind::Double, Device::Cpu)) * 12.9898 + seed;
        (at.sin() * 43_758.545_3).frac().abs()
    };
    let seed = seed as f64;
    let sum: Tensor = uniform(seed) + uniform(seed + 0.1) + uniform(seed + 0.2) - 1.5;
    (sum * ((uniform(seed + 0.3) - 0.5) * 4.6).exp()).view(size).to_kind(Kind::BFloat16)
}

fn same(got: Option<Codes>, expected: Option<Codes>, what: &str) {
    let (Some(got), Some(expected)) = (got, expected) else { panic!("{what}: codes are missing") };
    for (part, got, expected) in
        [("codes", &got.codes, &expected.codes), ("scales", &got.scales, &expected.scales)]
    {
        // How far apart the only one of its kind is says nothing.
        let strides = |x: &Tensor| {
            let of = |(n, step)| if n > 1 { step } else { 0 };
            x.size().into_iter().zip(x.stride()).map(of).collect::<Vec<i64>>()
        };
        assert_eq!((got.size(), strides(got)), (expected.size(), strides(expected)), "{what}, {part}");
        let wide = |x: &Tensor| x.to_device(Device::Cpu).to_kind(Kind::Float);
        let (got, expected) = (wide(got), wide(expected));
        let num = (got.ne_tensor(&expected)).sum(Kind::Int64).int64_value(&[]);
        assert_eq!(num, 0, "{what}: {num} of {} {part} differ", expected.numel());
    }
}

#[test]
fn codes_and_scales_are_those_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for kind in [Kind::BFloat16, Kind::Float] {
        for (rows, columns) in [(1, 128), (77, 256), (128, 640), (700, 2048), (4096, 1024)] {
            let x = drawn(&[rows, columns], rows).to_kind(kind).to_device(GPU);
            for (format, scaling) in [
                (Format::E4m3, Scaling::Lines),
                (Format::E5m2, Scaling::Lines),
                (Format::E4m3, Scaling::Blocks),
            ] {
                let of = Cast { format, scaling, copies: Copies::Both, row_multiple: 128, largest: None };
                let what = format!("{kind:?} [{rows}, {columns}], {format:?}, {scaling:?}");
                let [got_rows, got_columns] = cast(&x, &of).unwrap();
                let [of_rows, of_columns] = reference(&x, &of).unwrap();
                same(got_rows, of_rows, &format!("{what}, rows"));
                same(got_columns, of_columns, &format!("{what}, columns"));
            }
        }
        for size in [&[33, 48][..], &[700, 2064], &[3, 64, 80], &[16, 256, 128]] {
            let x = drawn(size, 9).to_kind(kind).to_device(GPU);
            let (r, c) = (size[size.len() - 2], size[size.len() - 1]);
            let b = x.numel() as i64 / r / c;
            let ramp = |len: i64| (Tensor::arange(len, (Kind::Float, GPU)) * 0.001 + 0.004).contiguous();
            let one = Tensor::from_slice(&[0.01f32]).to_device(GPU);
            for (rows, columns) in [(ramp(b * r), ramp(b * c)), (one.shallow_clone(), one)] {
                for format in [Format::E4m3, Format::E5m2] {
                    let largest = [0, 1].map(|_| Tensor::from_slice(&[0.25f32]).to_device(GPU));
                    let of = |largest| {
                        let scaling = Scaling::Given(&rows, &columns);
                        Cast {
                            format,
                            scaling,
                            copies: Copies::Both,
                            row_multiple: 16,
                            largest: Some(largest),
                        }
                    };
                    let what = format!("{kind:?} {size:?}, {format:?}, {} scales", rows.numel());
                    let [got_rows, got_columns] = cast(&x, &of(&largest[0])).unwrap();
                    let [of_rows, of_columns] = reference(&x, &of(&largest[1])).unwrap();
                    same(got_rows, of_rows, &format!("{what}, rows"));
                    same(got_columns, of_columns, &format!("{what}, columns"));
                    assert!(largest[0].equal(&largest[1]), "{what}: {} and {}", largest[0], largest[1]);
                }
            }
        }
    }
    // What is not finite stays so, one copy alone is the same.
    let x = drawn(&[128, 128], 5).to_device(GPU);
    let _ = x.get(3).get(7).fill_(f64::INFINITY);
    let one = Tensor::from_slice(&[1.0f32]).to_device(GPU);
    for copies in [Copies::Rows, Copies::Columns] {
        let scaling = Scaling::Given(&one, &one);
        let of = Cast { format: Format::E4m3, scaling, copies, row_multiple: 16, largest: None };
        let [rows, columns] = cast(&x, &of).unwrap();
        let codes = rows.or(columns).unwrap().codes.to_kind(Kind::Float);
        assert_eq!(codes.isnan().sum(Kind::Int64).int64_value(&[]), 1);
    }
}

#[test]
fn blocks_of_a_weight_are_those_that_are_published() {
    let weight = drawn(&[256, 640], 4);
    let (scaling, copies) = (Scaling::Blocks, Copies::Rows);
    let of = Cast { format: Format::E4m3, scaling, copies, row_multiple: 128, largest: None };
    let [rows, _] = cast(&weight, &of).unwrap();
    let Codes { codes, scales } = rows.unwrap();
    let values = Vec::<f32>::try_from(weight.to_kind(Kind::Float).view(-1)).unwrap();
    let quantiser =
        Quantiser { form: QuantisedForm::Fp8Block, group_size: 128, is_symmetric: true, only_experts: false };
    let published = quantiser.quantise(&values, &[256, 640]).unwrap();
    let bytes = Vec::<u8>::try_from(codes.view_dtype(Kind::Uint8).view(-1)).unwrap();
    let scales = Vec::<f32>::try_from(scales.contiguous().view(-1)).unwrap();
    let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    assert!(bytes == published[0] && scales == published[1]);
}

#[test]
fn weights_behind_four_bits_are_those_that_are_published() {
    let shape = [48, 128];
    for group_size in [8, 32, 128] {
        let weight = drawn(&[48, 128], 6);
        let values = Vec::<f32>::try_from(weight.to_kind(Kind::Float).view(-1)).unwrap();
        let form = QuantisedForm::Int4Ct;
        let quantiser = Quantiser { form, group_size, is_symmetric: true, only_experts: true };
        let parts = quantiser.quantise(&values, &shape).unwrap();
        let words = parts[0].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let codes =
            words.flat_map(|word| (0..8).map(move |at| f32::from((word >> (4 * at) & 0xf) as u8) - 8.0));
        let scales = parts[1].as_chunks::<2>().0.iter();
        let scales: Vec<f32> =
            scales.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect();
        let published: Vec<f32> =
            codes.enumerate().map(|(at, code)| code * scales[at / group_size]).collect();
        let published = Tensor::from_slice(&published).view([48, 128]).to_kind(Kind::BFloat16);
        for (kind, device) in [
            (Kind::BFloat16, Device::Cpu),
            (Kind::Float, Device::Cpu),
            (Kind::BFloat16, GPU),
            (Kind::Float, GPU),
        ] {
            if device == GPU && !gate::has_gpu() {
                continue;
            }
            let got = fake_int4(&weight.to_kind(kind).to_device(device), group_size as i64).unwrap();
            assert_eq!(got.kind(), kind);
            assert!(
                got.to_device(Device::Cpu).to_kind(Kind::BFloat16).equal(&published),
                "{kind:?} {device:?} {group_size}"
            );
        }
    }
}

#[test]
fn keys_and_values_are_kept_as_codes() {
    if !gate::has_gpu() {
        return;
    }
    for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128), (4, 4, 256)] {
        for kind in [Kind::BFloat16, Kind::Float] {
            let t = 37;
            let on = |x: Tensor| x.to_kind(kind).to_device(GPU);
            let qkv = on(drawn(&[t, (heads + 2 * kv_heads) * dim], 1));
            let weight = on(drawn(&[dim], 2));
            let angles = (Tensor::arange(t * dim / 2, (Kind::Float, GPU)) * 0.1).view([t, dim / 2]);
            let slots = (Tensor::arange(t, (Kind::Int64, GPU)) * 5).remainder(64);
            let (cos, sin) = (angles.cos(), angles.sin());
            let places = Places { cos_tr: &cos, sin_tr: &sin, slots_t: &slots };
            let norm = Norm { q_k: &weight, k_k: &weight, eps: 1e-6 };
            let run = |of_cache: Kind| {
                let cache = [0, 1].map(|_| Tensor::zeros([64, kv_heads, dim], (of_cache, GPU)));
                let q = Tensor::zeros([t, heads, dim], (kind, GPU));
                qk_norm_rope::serve(&qkv, Some(norm), places, &q, (&cache[0], &cache[1])).unwrap();
                let [keys, values] = cache;
                [q, keys, values]
            };
            let ([q, keys, values], [q_plain, k_plain, v_plain]) = (run(kv_fp8::CODES), run(kind));
            assert!(q.equal(&q_plain));
            let differing = |codes: &Tensor, plain: &Tensor| {
                let expected = kv_fp8::encode(plain).unwrap();
                codes.ne_tensor(&expected).sum(Kind::Int64).int64_value(&[])
            };
            let shares = [differing(&keys, &k_plain), differing(&values, &v_plain)];
            assert_eq!(shares, [0, 0], "{heads} {dim} {kind:?}: so many codes differ");
        }
    }
}

fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    let wide = |x: &Tensor| x.detach().to_kind(Kind::Double).to_device(Device::Cpu);
    let (got, expected) = (wide(got), wide(expected));
    (&got - &expected).norm().double_value(&[]) / expected.norm().double_value(&[])
}

fn state(device: Device, scales: [f32; 3]) -> [Tensor; 2] {
    let scales = Tensor::from_slice(&scales.map(|scale| [scale, 0.0, 0.0, 0.0]).concat());
    [scales.to_device(device), Tensor::zeros([12], (Kind::Float, device))]
}

#[test]
fn products_are_those_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for (tokens, inputs, outputs) in [(1, 128, 128), (100, 256, 384), (515, 1024, 640), (2048, 512, 2560)] {
        for mode in [Mode::Block, Mode::Own, Mode::Delayed] {
            let on = |device: Device| {
                let leaf = |x: Tensor| x.to_device(device).set_requires_grad(true);
                let (x, weight) = (leaf(drawn(&[tokens, inputs], 1)), leaf(drawn(&[outputs, inputs], 2)));
                let state = state(device, [0.02, 0.03, 0.004]);
                let state: Vec<&Tensor> = if mode == Mode::Block { vec![] } else { state.iter().collect() };
                let out = fp8_linear::train(&x, &weight, mode, &state).unwrap();
                let grad = drawn(&[tokens, outputs], 3).to_device(device);
                slime_torch::backward_with(&[&out], &[&grad]).unwrap();
                [out, x.grad(), weight.grad()]
            };
            for (at, (got, expected)) in on(GPU).iter().zip(on(Device::Cpu)).enumerate() {
                let apart = distance(got, &expected);
                // The last place of bf16; forward, tensor cores add up 14 bits.
                let bound = if at == 0 && mode != Mode::Block { 8e-3 } else { 4e-3 };
                assert!(apart < bound, "{mode:?} {tokens} {inputs} {outputs}, {at}: {apart:e}");
            }
        }
    }
}

#[test]
fn experts_are_those_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    let (e, d, m) = (8, 256, 128);
    for tokens in [1, 37, 600] {
        for mode in [Mode::Block, Mode::Own, Mode::Delayed] {
            let on = |device: Device| {
                let leaf = |x: Tensor| x.to_device(device).set_requires_grad(true);
                let (gate_up, down) =
                    (leaf(drawn(&[e * 2 * m, d], 1) * 0.1), leaf(drawn(&[e * d, m], 2) * 0.1));
                let weights = [gate_up.shallow_clone(), down.shallow_clone()];
                let mut all = Experts::new(gate_up, down, e as usize).unwrap();
                let fp8 =
                    || Fp8 { mode, state: (mode != Mode::Block).then(|| state(device, [0.02, 0.003, 0.05])) };
                all.set_fp8(Some([fp8(), fp8()]));
                let x = leaf(drawn(&[tokens, d], 3));
                // Some experts get no token.
                let ids =
                    (Tensor::arange(tokens * 2, (Kind::Int64, device)) * 5).remainder(7).view([tokens, 2]);
                let weights_tk = leaf(drawn(&[tokens, 2], 4).to_kind(Kind::Float));
                let routed = Routed { ids_tk: ids, weights_tk: weights_tk.shallow_clone() };
                let out = experts(&all, &x, &routed).unwrap();
                let grad = drawn(&[tokens, d], 5).to_device(device);
                slime_torch::backward_with(&[&out], &[&grad]).unwrap();
                [out, x.grad(), weights_tk.grad(), weights[0].grad(), weights[1].grad()]
            };
            for (at, (got, expected)) in on(GPU).iter().zip(on(Device::Cpu)).enumerate() {
                let apart = distance(got, &expected);
                // A code of the gated activation may fall to its neighbour where bf16 rounds otherwise.
                assert!(apart < 5e-2, "{mode:?} {tokens}, {at}: {apart:e}");
            }
        }
    }
}
