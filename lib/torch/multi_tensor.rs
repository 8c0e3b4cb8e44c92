//! One pass over many tensors: the global gradient norm and the `AdamW` update.
//!
//! `AdamW` is Loshchilov and Hutter (arXiv 1711.05101), algorithm 2, with decay applied as `master *= 1 - lr * decay`:
//! what `torch.optim.AdamW` computes.
#![expect(unsafe_code, reason = "calls into the shim")]

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{self, Pointers};

/// The numbers of one `AdamW` update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// One parameter with its optimizer state; all tensors are contiguous and of the same size.
#[derive(Debug, Clone, Copy)]
pub struct ParamState<'a> {
    /// The weights that forward reads, f32 or bf16; in f64 everything is.
    pub param: &'a Tensor,
    /// Their gradient, f32 or bf16.
    pub grad: &'a Tensor,
    /// f32 weights; may be `param` itself when that is f32.
    pub master: &'a Tensor,
    /// f32 first moment.
    pub first: &'a Tensor,
    /// f32 second moment.
    pub second: &'a Tensor,
}

/// Updates masters and moments in place and writes the new weights into `param`; `step` counts from 1, and each
/// gradient is multiplied by `grad_scale` on the way (clipping costs no pass of its own).
///
/// # Errors
/// A wrong dtype, size, layout or device, naming the list and its index.
pub fn adamw_step(states: &[ParamState], adamw: &AdamW, step: u64, grad_scale: f64) -> Result<()> {
    if step == 0 {
        return Err(Error::Torch { operation: "adamw", message: "step counts from 1".to_owned() });
    }
    let (wide, narrow): (Vec<_>, Vec<_>) =
        states.iter().copied().partition(|state| state.param.kind() == Kind::Double);
    wide.iter().try_for_each(|state| reference(*state, adamw, step, grad_scale))?;
    let states = narrow;
    let params = Pointers::new(states.iter().map(|state| state.param));
    let grads = Pointers::new(states.iter().map(|state| state.grad));
    let masters = Pointers::new(states.iter().map(|state| state.master));
    let firsts = Pointers::new(states.iter().map(|state| state.first));
    let seconds = Pointers::new(states.iter().map(|state| state.second));
    ffi::checked("adamw", |error| {
        // SAFETY: five lists of the same length that outlive the call; the shim checks dtype and size of each tensor.
        unsafe {
            ffi::slime_adamw(
                params.as_ptr(),
                grads.as_ptr(),
                masters.as_ptr(),
                firsts.as_ptr(),
                seconds.as_ptr(),
                params.len(),
                adamw.lr,
                adamw.beta1,
                adamw.beta2,
                adamw.eps,
                adamw.weight_decay,
                grad_scale,
                step as i64,
                error,
            )
        }
    })
}

/// The definition of the update, for parameters whose tensors are all of one kind; `master` is `param` itself.
///
/// # Errors
/// Sizes or kinds that do not fit.
pub fn reference(state: ParamState<'_>, adamw: &AdamW, step: u64, grad_scale: f64) -> Result<()> {
    let AdamW { lr, beta1, beta2, eps, weight_decay } = *adamw;
    let update = || {
        let [mut first, mut second, mut param] = [state.first, state.second, state.param].map(Tensor::detach);
        let grad = state.grad.f_mul_scalar(grad_scale)?;
        let _ = first.f_mul_scalar_(beta1)?.f_add_(&grad.f_mul_scalar(1.0 - beta1)?)?;
        let _ = second.f_mul_scalar_(beta2)?.f_add_(&grad.f_square()?.f_mul_scalar(1.0 - beta2)?)?;
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        let root = second.f_div_scalar(correction(beta2))?.f_sqrt()?.f_add_scalar(eps)?;
        let move_by = first.f_div_scalar(correction(beta1))?.f_div(&root)?.f_mul_scalar(lr)?;
        let _ = param.f_mul_scalar_(1.0 - lr * weight_decay)?.f_sub_(&move_by)?;
        Ok(())
    };
    tch::no_grad(update)
        .map_err(|error: tch::TchError| Error::Torch { operation: "adamw", message: error.to_string() })
}

/// The Euclidean norm over all elements of all tensors (f32, f64 or bf16), summed in f64 in a fixed order on the CPU,
/// so it does not depend on the number of threads.
///
/// # Errors
/// A wrong dtype or layout.
pub fn global_norm<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let pointers = Pointers::new(tensors);
    let mut norm = 0.0;
    ffi::checked("norm", |error| {
        // SAFETY: the list outlives the call, and `norm` is writable.
        unsafe { ffi::slime_global_norm(pointers.as_ptr(), pointers.len(), &raw mut norm, error) }
    })?;
    Ok(norm)
}

/// What gradients are multiplied by so that their norm is at most `max_norm`; 1 when `max_norm` is 0 (no clipping).
/// Source: `torch.nn.utils.clip_grad_norm_`.
pub fn clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    if max_norm <= 0.0 { 1.0 } else { (max_norm / (norm + 1e-6)).min(1.0) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    const ADAMW: AdamW = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01 };

    /// The scalar recursion in f64.
    fn reference(mut weight: f64, grads: &[f64]) -> f64 {
        let (mut first, mut second) = (0.0, 0.0);
        for (i, grad) in grads.iter().enumerate() {
            let step = i as i32 + 1;
            first = 0.9 * first + 0.1 * grad;
            second = 0.99 * second + 0.01 * grad * grad;
            let (first_hat, second_hat) =
                (first / (1.0 - 0.9f64.powi(step)), second / (1.0 - 0.99f64.powi(step)));
            weight = weight * (1.0 - 0.1 * 0.01) - 0.1 * first_hat / (second_hat.sqrt() + 1e-8);
        }
        weight
    }

    fn filled(value: f64, len: i64, kind: Kind) -> Tensor {
        Tensor::full([len], value, (kind, Device::Cpu))
    }

    #[test]
    fn first_step_is_the_golden_number() {
        // 1 * (1 - 0.001) - 0.1 * sign(g): moments cancel in the first step.
        let (param, grad) = (filled(1.0, 3, Kind::Float), filled(0.5, 3, Kind::Float));
        let (first, second) = (param.zeros_like(), param.zeros_like());
        let state = ParamState { param: &param, grad: &grad, master: &param, first: &first, second: &second };
        adamw_step(&[state], &ADAMW, 1, 1.0).unwrap();
        assert!((param.double_value(&[0]) - 0.899).abs() < 1e-6);
        assert!((first.double_value(&[0]) - 0.05).abs() < 1e-8);
        assert!((second.double_value(&[0]) - 0.0025).abs() < 1e-8);
    }

    #[test]
    fn many_steps_follow_the_recursion_over_chunk_borders() {
        let grads = [0.5, -0.25, 0.125, 2.0, -1.0];
        for (param_kind, tolerance) in [(Kind::Float, 1e-6), (Kind::BFloat16, 4e-3)] {
            let sizes = [1, 70_001];
            let params: Vec<Tensor> = sizes.iter().map(|len| filled(1.0, *len, param_kind)).collect();
            let masters: Vec<Tensor> = params.iter().map(|param| param.to_kind(Kind::Float)).collect();
            let firsts: Vec<Tensor> = masters.iter().map(Tensor::zeros_like).collect();
            let seconds: Vec<Tensor> = masters.iter().map(Tensor::zeros_like).collect();
            for (step, grad) in grads.iter().enumerate() {
                // The scale of 0.5 stands for clipping.
                let grads: Vec<Tensor> = params.iter().map(|param| param.full_like(2.0 * grad)).collect();
                let states: Vec<ParamState> = (0..params.len())
                    .map(|i| ParamState {
                        param: &params[i],
                        grad: &grads[i],
                        master: &masters[i],
                        first: &firsts[i],
                        second: &seconds[i],
                    })
                    .collect();
                adamw_step(&states, &ADAMW, step as u64 + 1, 0.5).unwrap();
            }
            let expected = reference(1.0, &grads);
            for (param, master) in params.iter().zip(&masters) {
                let last = param.size()[0] - 1;
                for index in [0, last / 2, last] {
                    assert!((master.double_value(&[index]) - expected).abs() < 1e-6, "{expected}");
                    assert!((param.double_value(&[index]) - expected).abs() < tolerance);
                }
            }
        }
    }

    #[test]
    fn norm_equals_that_of_one_vector_on_any_number_of_threads() {
        tch::manual_seed(2);
        let tensors: Vec<Tensor> = [3, 100_000, 65_536]
            .iter()
            .map(|len| Tensor::randn([*len], (Kind::Float, Device::Cpu)))
            .collect();
        let expected = Tensor::cat(&tensors, 0).to_kind(Kind::Double).norm().double_value(&[]);
        let threads = tch::get_num_threads();
        tch::set_num_threads(1);
        let one = global_norm(&tensors).unwrap();
        tch::set_num_threads(threads.max(2));
        let two = global_norm(&tensors).unwrap();
        tch::set_num_threads(threads);
        assert!((one - expected).abs() < 1e-9 * expected);
        assert_eq!(one.to_bits(), two.to_bits());
        assert!((clip_coefficient(one, 1.0) * one - 1.0).abs() < 1e-6);
        assert_eq!(clip_coefficient(0.5, 1.0).to_bits(), 1.0f64.to_bits());
    }

    #[test]
    fn wrong_size_names_the_list() {
        let (param, grad) = (filled(1.0, 3, Kind::Float), filled(0.5, 2, Kind::Float));
        let state = ParamState { param: &param, grad: &grad, master: &param, first: &param, second: &param };
        let error = adamw_step(&[state], &ADAMW, 1, 1.0).unwrap_err();
        assert!(error.to_string().contains("grads[0]: expected 3 elements, got 2"), "{error}");
    }
}
