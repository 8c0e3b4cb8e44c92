//! The same numbers on a CUDA device as on the CPU, through everything this crate adds. `SLIME_REQUIRE_CUDA=1` makes a
//! missing device a failure; without it the test says so and checks nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tests/gpu/gate.rs"]
mod gate;

use slime_torch::{AdamW, CustomFunction, Forward, ParamState, adamw_step, custom_function, global_norm};
use tch::{Device, Kind, Tensor};

/// `x -> x w^T`, with both saved.
struct Linear;

impl CustomFunction for Linear {
    fn forward(&self, inputs: &[Tensor]) -> Result<Forward, String> {
        let (x, w) = (&inputs[0], &inputs[1]);
        Ok(Forward { outputs: vec![x.matmul(&w.tr())], saved: vec![x.shallow_clone(), w.shallow_clone()] })
    }

    fn backward(&self, saved: &[Tensor], grads: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>, String> {
        let grad = grads[0].as_ref().ok_or("no gradient")?;
        Ok(vec![Some(grad.matmul(&saved[1])), Some(grad.tr().matmul(&saved[0]))])
    }
}

/// Ten steps of a small regression: the weights, and the last gradient norm.
fn train(device: Device) -> (Tensor, f64) {
    tch::manual_seed(5);
    let on_host = (Kind::Float, Device::Cpu);
    let (x, target) = (Tensor::randn([48, 32], on_host), Tensor::randn([48, 16], on_host));
    let (x, target) = (x.to_device(device), target.to_device(device));
    let mut param = Tensor::zeros([16, 32], (Kind::Float, device)).set_requires_grad(true);
    let (first, second) = (param.zeros_like(), param.zeros_like());
    let adamw = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
    let mut norm = 0.0;
    for step in 1..=10 {
        let y = custom_function(&[&x, &param], Linear).unwrap().remove(0);
        // On a device the backward runs on a thread of its own.
        (y - &target).square().mean(Kind::Float).backward();
        let grad = param.grad();
        norm = global_norm([&grad]).unwrap();
        let state = ParamState { param: &param, grad: &grad, master: &param, first: &first, second: &second };
        adamw_step(&[state], &adamw, step, 0.5).unwrap();
        param.zero_grad();
    }
    (param.detach().to_device(Device::Cpu), norm)
}

#[test]
fn training_steps_on_a_device_are_those_of_the_cpu() {
    if !gate::has_gpu() {
        return;
    }
    let ((on_cpu, norm), (on_device, device_norm)) = (train(Device::Cpu), train(Device::Cuda(0)));
    let difference = (&on_cpu - &on_device).abs().max().double_value(&[]);
    eprintln!("{} device(s); weights differ by {difference:e}", tch::Cuda::device_count());
    assert!(
        difference < 1e-5 && (norm - device_norm).abs() < 1e-5 * norm,
        "{difference}, {norm}, {device_norm}"
    );
}
