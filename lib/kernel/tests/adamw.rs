//! The update, the norm of gradients and the sums of rows on a GPU against their definitions. `SLIME_REQUIRE_CUDA=1` makes a
//! missing GPU a failure; without it these tests say so and check nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_kernel::adamw::{global_norm, step};
use slime_kernel::sum_rows::{Lists, reference, sum_rows};
use slime_torch::{AdamW, ParamState, adamw_step};
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

fn wave(len: i64, seed: f64) -> Tensor {
    let at = Tensor::arange(len, (Kind::Double, Device::Cpu)) * 12.9898 + seed;
    at.sin().to_kind(Kind::Float)
}

#[test]
fn updates_are_those_of_the_cpu_at_every_address() {
    if !gate::has_gpu() {
        return;
    }
    let rates = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
    for (len, skipped) in [(1, 0), (1_000_003, 0), (70_001, 1), (4096, 3)] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let run = |device: Device| {
                // Shares of storages begin anywhere.
                let on = |x: Tensor| x.to_device(device).narrow(0, skipped, len);
                let master = on(wave(len + skipped, 1.0));
                let param = if kind == Kind::Float {
                    master.shallow_clone()
                } else {
                    on(wave(len + skipped, 1.0).to_kind(kind))
                };
                let (first, second) = (master.zeros_like(), master.zeros_like());
                for at in 1..=3 {
                    let grad = on(wave(len + skipped, f64::from(at)));
                    let state = ParamState {
                        param: &param,
                        grad: &grad,
                        master: &master,
                        first: &first,
                        second: &second,
                    };
                    let update = if device.is_cuda() {
                        step(&[state], &rates, at as u64, 0.5).map_err(|error| error.to_string())
                    } else {
                        adamw_step(&[state], &rates, at as u64, 0.5).map_err(|error| error.to_string())
                    };
                    update.unwrap();
                }
                [param, master, first, second].map(|x| x.to_device(Device::Cpu).to_kind(Kind::Float))
            };
            for (at, (got, expected)) in run(GPU).iter().zip(run(Device::Cpu)).enumerate() {
                let error = (got - expected).abs().max().double_value(&[]);
                let bound = if at == 0 && kind == Kind::BFloat16 { 1e-2 } else { 2e-6 };
                assert!(error < bound, "{len} of {kind:?} from {skipped} on, tensor {at}: {error:e}");
            }
        }
    }
}

#[test]
fn norm_is_that_of_all_tensors_together() {
    if !gate::has_gpu() {
        return;
    }
    let tensors: Vec<Tensor> =
        [1, 3, 70_001, 5_000_000].map(|len| wave(len + 1, 2.0).to_device(GPU).narrow(0, 1, len)).into();
    let expected = Tensor::cat(&tensors, 0).to_kind(Kind::Double).norm().double_value(&[]);
    let got = global_norm(&tensors).unwrap();
    assert!((got - expected).abs() < 1e-6 * expected, "{got} and {expected}");
    assert_eq!(got.to_bits(), global_norm(&tensors).unwrap().to_bits());
    assert!(global_norm(&[]).unwrap() <= 0.0);
}

#[test]
fn sums_of_rows_are_those_of_the_definition() {
    if !gate::has_gpu() {
        return;
    }
    for (width, per_list) in [(8, 1), (1024, 3), (2048, 8), (200, 5)] {
        let rows = wave(77 * width, 1.0).view([77, width]);
        let ids = (Tensor::arange(60 * per_list, (Kind::Int64, Device::Cpu)) * 31).remainder(77);
        let weights = wave(60 * per_list, 3.0);
        let cuts: Vec<i64> = (0..=20).map(|at| at * at * 60 * per_list / 400).collect();
        let offsets = Tensor::from_slice(&cuts);
        for (kind, tolerance) in [(Kind::Float, 1e-6), (Kind::BFloat16, 3e-3)] {
            for weights in [None, Some(&weights)] {
                for is_even in [true, false] {
                    let lists =
                        |offsets| if is_even { Lists::Even(per_list) } else { Lists::Offsets(offsets) };
                    let narrow = rows.to_kind(kind);
                    let wide = weights.map(|weights| weights.to_kind(Kind::Double));
                    let expected =
                        reference(&narrow.to_kind(Kind::Double), lists(&offsets), &ids, wide.as_ref())
                            .unwrap();
                    let on_gpu = weights.map(|weights| weights.to_device(GPU));
                    let cuts = offsets.to_device(GPU);
                    let got =
                        sum_rows(&narrow.to_device(GPU), lists(&cuts), &ids.to_device(GPU), on_gpu.as_ref())
                            .unwrap();
                    let difference = got.to_device(Device::Cpu).to_kind(Kind::Double) - &expected;
                    let error = difference.norm().double_value(&[]) / expected.norm().double_value(&[]);
                    assert!(error < tolerance, "{kind:?}, width {width}, even {is_even}: {error:e}");
                }
            }
        }
    }
}
