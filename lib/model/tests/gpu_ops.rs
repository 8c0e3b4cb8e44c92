//! Operations on a GPU against their definitions in f64 on the CPU. `SLIME_REQUIRE_CUDA=1` makes a missing GPU a failure;
//! without it these tests say so and check nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_model::ops::{add_norm, attend, silu_mul};
use slime_model::{Context, Segment, Workspace};
use tch::{Device, Kind, Tensor};

/// Numbers like normal ones, the same in every run, rounded to `kind`.
fn numbers(size: &[i64], seed: f64, kind: Kind) -> Tensor {
    let at = Tensor::arange(size.iter().product::<i64>(), (Kind::Double, Device::Cpu)) * 12.9898 + seed;
    let uniform: Tensor = (at.sin() * 43_758.545_3).frac().abs();
    ((uniform - 0.5) * 3.0).view(size).to_kind(kind)
}

fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    let wide = |x: &Tensor| x.to_kind(Kind::Double).to_device(Device::Cpu);
    let (got, expected) = (wide(got), wide(expected));
    (&got - &expected).norm().double_value(&[]) / expected.norm().double_value(&[])
}

/// The largest row by row, so that one wrong row shows.
fn row_distance(got: &Tensor, expected: &Tensor) -> f64 {
    let rows = got.size()[0];
    (0..rows).map(|row| distance(&got.get(row), &expected.get(row))).fold(0.0, f64::max)
}

const KINDS: [(Kind, f64); 2] = [(Kind::Float, 2e-5), (Kind::BFloat16, 1.5e-2)];

#[test]
fn attention_of_whole_sequences_is_right_in_every_row_at_every_length() {
    if !gate::has_gpu() {
        return;
    }
    let device = Device::Cuda(0);
    for (kind, tolerance) in KINDS {
        for (heads, kv_heads, dim) in [(4, 2, 64), (9, 3, 64), (8, 1, 128)] {
            for (prefix, len) in (1..140usize)
                .step_by(7)
                .map(|len| (0, len))
                .chain((1..70).step_by(3).map(|len| (390 + len / 3, 3 * len + 1)))
            {
                let mut segments = vec![Segment::alone(0, if prefix == 0 { len } else { prefix })];
                if prefix > 0 {
                    // Two continuations of one prompt.
                    segments.push(Segment::after((0, prefix), prefix, len));
                    segments.push(Segment::after((0, prefix), prefix + len, 5));
                }
                let t: usize = segments.iter().map(|segment| segment.len).sum();
                let of = |width: i64, seed: f64| numbers(&[t as i64, width, dim], seed, kind);
                let (q, k, v) = (of(heads, 1.0), of(kv_heads, 2.0), of(kv_heads, 3.0));
                let run = |device: Device, kind: Kind| {
                    let mut context = Context::packed(&segments, kind, device).unwrap();
                    let on = |x: &Tensor| x.to_kind(kind).to_device(device);
                    attend::attend(&mut context, 0, &on(&q), &on(&k), &on(&v)).unwrap()
                };
                let error = row_distance(&run(device, kind), &run(Device::Cpu, Kind::Double));
                assert!(
                    error < tolerance,
                    "{kind:?}, {heads} heads of {dim}, {len} after {prefix}: {error:e}"
                );
            }
        }
    }
}

#[test]
fn add_and_norm_and_gate_are_those_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    let (device, workspace) = (Device::Cuda(0), Workspace::default());
    for (kind, tolerance) in KINDS {
        for (rows, width) in [(1, 8), (3, 576), (300, 1024), (7, 4096), (2, 16_384)] {
            let on = |x: &Tensor| x.to_device(device);
            let [x, delta] = [1.0, 2.0].map(|seed| numbers(&[rows, width], seed, kind));
            let weight = numbers(&[width], 3.0, kind);
            for delta in [None, Some(&delta)] {
                let got = add_norm::add_norm(&workspace, on(&x), delta.map(on).as_ref(), &on(&weight), 1e-6)
                    .unwrap();
                let wide = |x: &Tensor| x.to_kind(Kind::Double);
                let expected =
                    add_norm::reference(wide(&x), delta.map(wide).as_ref(), &wide(&weight), 1e-6).unwrap();
                for (got, expected) in [(got.0, expected.0), (got.1, expected.1)] {
                    let error = distance(&got, &expected);
                    assert!(error < tolerance, "{kind:?} {rows} x {width}: {error:e}");
                }
            }
            let gate_up = numbers(&[rows, 2 * width], 4.0, kind);
            let got = silu_mul::silu_mul(&workspace, &on(&gate_up)).unwrap();
            let expected = silu_mul::reference(&gate_up.to_kind(Kind::Double)).unwrap();
            let error = distance(&got, &expected);
            assert!(error < tolerance, "{kind:?} gate of {rows} x {width}: {error:e}");
        }
    }
}
