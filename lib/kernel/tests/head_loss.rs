//! The reference against libtorch's softmax, and the kernels against the reference. `SLIME_REQUIRE_CUDA=1` makes a missing
//! GPU a failure; without it those tests say so and check nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_kernel::head_loss::{Columns, absorb, absorb_reference, fresh_state, slope, slope_reference};
use tch::{Device, Kind, Tensor};

/// Numbers like normal ones, the same in every run.
fn numbers(size: [i64; 2], seed: f64, options: (Kind, Device)) -> Tensor {
    let (kind, device) = options;
    let at = Tensor::arange(size[0] * size[1], (Kind::Double, Device::Cpu)) * 12.9898 + seed;
    let uniform: Tensor = (at.sin() * 43_758.545_3).frac().abs();
    ((uniform - 0.5) * 8.0).view(size).to_kind(kind).to_device(device)
}

fn distance(got: &Tensor, expected: &Tensor) -> f64 {
    let wide = |x: &Tensor| x.to_kind(Kind::Double).to_device(Device::Cpu);
    let (got, expected) = (wide(got), wide(expected));
    (&got - &expected).norm().double_value(&[]) / expected.norm().double_value(&[])
}

#[test]
fn state_of_chunks_is_the_softmax_of_all() {
    let logits = numbers([6, 70], 1.0, (Kind::Double, Device::Cpu));
    let targets = Tensor::from_slice(&[0i64, 29, 30, 31, 69, 5]);
    let state = fresh_state(6, (Kind::Double, Device::Cpu)).unwrap();
    for (first, len) in [(0, 30), (30, 1), (31, 39)] {
        let columns = Columns { first, temperature: 0.7 };
        absorb_reference(&state, &logits.narrow(1, first, len), &targets, columns).unwrap();
    }
    let scaled: Tensor = &logits / 0.7;
    let log_softmax = scaled.log_softmax(-1, Kind::Double);
    let part = |at: i64| state.select(1, at);
    let lse = part(0) + part(1).log();
    assert!(distance(&lse, &scaled.logsumexp([-1i64], false)) < 1e-14);
    let entropy = part(1).log() - part(2) / part(1);
    let expected = -(log_softmax.exp() * &log_softmax).sum_dim_intlist(-1, false, None::<Kind>);
    assert!(distance(&entropy, &expected) < 1e-13);
    assert!(distance(&part(3), &scaled.gather(1, &targets.unsqueeze(1), false).squeeze()) < 1e-15);
}

#[test]
fn kernels_equal_their_reference_whatever_the_shape() {
    if !gate::has_gpu() {
        return;
    }
    let device = Device::Cuda(0);
    for (num_rows, num_columns) in
        [(1, 1), (3, 7), (5, 4096), (130, 8192), (2, 151_936), (7, 50_257), (4, 16_388)]
    {
        for temperature in [1.0, 0.6, 3.0] {
            let logits = numbers([num_rows, num_columns], 2.0, (Kind::Float, device));
            let targets =
                (Tensor::arange(num_rows, (Kind::Int64, device)) * 977 + 40).remainder(num_columns + 60);
            let state = fresh_state(num_rows, (Kind::Float, device)).unwrap();
            let expected = fresh_state(num_rows, (Kind::Double, device)).unwrap();
            // Twice, as two chunks of one vocabulary; a target lies in one of them or in neither.
            for first in [0, num_columns + 10] {
                let columns = Columns { first, temperature };
                absorb(&state, &logits, &targets, columns).unwrap();
                absorb_reference(&expected, &logits.to_kind(Kind::Double), &targets, columns).unwrap();
            }
            let error = distance(&state, &expected);
            assert!(error < 2e-6, "state of {num_rows} x {num_columns} at {temperature}: {error:e}");
            let rows = Tensor::cat(
                &[
                    expected.select(1, 0) + expected.select(1, 1).log(),
                    expected.select(1, 1).log() - expected.select(1, 2) / expected.select(1, 1),
                ],
                0,
            );
            let slopes = numbers([num_rows, 3], 3.0, (Kind::Double, device));
            let rows = Tensor::cat(&[rows.view((2, num_rows)).tr(), slopes], 1);
            let columns = Columns { first: 10, temperature };
            let want = slope_reference(&logits.to_kind(Kind::Double), &targets, &rows, columns).unwrap();
            let rows = rows.to_kind(Kind::Float).contiguous();
            for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 4e-3)] {
                let got = slope(&logits.copy(), &targets, &rows, columns, kind).unwrap();
                assert_eq!(got.kind(), kind);
                let error = distance(&got, &want);
                assert!(
                    error < tolerance,
                    "{kind:?} of {num_rows} x {num_columns} at {temperature}: {error:e}"
                );
            }
        }
    }
}
