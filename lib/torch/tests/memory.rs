//! A thousand training steps through custom functions and `AdamW` need no more memory than a hundred.
#![allow(clippy::unwrap_used, reason = "a test")]

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

/// Resident pages of this process, in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn thousand_training_steps_keep_memory_flat_and_learn() {
    tch::manual_seed(3);
    let options = (Kind::Float, Device::Cpu);
    let target = Tensor::randn([64, 64], options);
    let mut param = Tensor::zeros([64, 64], options).set_requires_grad(true);
    let (first, second) = (param.zeros_like(), param.zeros_like());
    let adamw = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0 };
    let (mut losses, mut warm) = (Vec::new(), 0);
    for step in 1..=1_000u64 {
        // A different number of rows each time, as packed batches have.
        let x = Tensor::randn([64 + (step % 7) as i64 * 32, 64], options);
        let y = custom_function(&[&x, &param], Linear).unwrap().remove(0);
        let loss = (y - x.matmul(&target.tr())).square().mean(Kind::Float);
        loss.backward();
        let grad = param.grad();
        assert!(global_norm([&grad]).unwrap().is_finite());
        let state = ParamState { param: &param, grad: &grad, master: &param, first: &first, second: &second };
        adamw_step(&[state], &adamw, step, 1.0).unwrap();
        param.zero_grad();
        losses.push(loss.double_value(&[]));
        if step == 200 {
            warm = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(warm);
    assert!(losses[999] < losses[0] / 100.0, "{} -> {}", losses[0], losses[999]);
    assert!(grown < 4 << 20, "memory grew by {grown} bytes over 800 steps");
}
