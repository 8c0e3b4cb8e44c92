//! The `AdamW` update and the norm of gradients on a GPU, each in one pass over memory.
#![expect(unsafe_code, reason = "launches kernels")]

use slime_cuda::Program;
use slime_torch::{AdamW, ParamState};
use tch::{Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "adamw";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("adamw.cu"));
const THREADS: i64 = 256;
/// Most blocks: some for each of a large GPU's 132 multiprocessors.
const NUM_BLOCKS: i64 = 132 * 8;

/// Whether [`step`] and [`global_norm`] take gradients like this one.
pub fn is_supported(grad: &Tensor) -> bool {
    grad.kind() == Kind::Float && grad.device().is_cuda()
}

/// What [`slime_torch::adamw_step`] does, for f32 gradients on a GPU, without a pass for clipping or for the narrow weights. No
/// memory is taken.
///
/// # Errors
/// Tensors that do not fit each other or that are elsewhere; no compiler or driver.
pub fn step(states: &[ParamState<'_>], adamw: &AdamW, step: u64, grad_scale: f64) -> Result<()> {
    let correction = |beta: f64| 1.0 - beta.powf(step as f64);
    let rates = [
        grad_scale,
        1.0 - adamw.lr * adamw.weight_decay,
        adamw.beta1,
        1.0 - adamw.beta1,
        adamw.beta2,
        1.0 - adamw.beta2,
        adamw.lr / correction(adamw.beta1),
        1.0 / correction(adamw.beta2).sqrt(),
        adamw.eps,
    ];
    for state in states {
        let (kind, num) = (state.param.kind(), state.param.numel() as i64);
        if !is_element(kind, state.param.device()) {
            return Err(refused(NAME, "weights", "f32 or bf16 on a GPU", format!("{:?}", state.param)));
        }
        let (size, device) = (state.param.size(), state.param.device());
        is_as(NAME, "weights", state.param, (kind, &size, device))?;
        for (what, tensor) in [
            ("gradient", state.grad),
            ("master weights", state.master),
            ("first moment", state.first),
            ("second moment", state.second),
        ] {
            is_as(NAME, what, tensor, (Kind::Float, &size, device))?;
        }
        if num == 0 {
            continue;
        }
        let tensors = [state.param, state.grad, state.master, state.first, state.second];
        let is_own = state.param.data_ptr() == state.master.data_ptr();
        let mut arguments = Arguments::default()
            .optional((!is_own).then_some(state.param))
            .tensor(state.grad)
            .tensor(state.master)
            .tensor(state.first)
            .tensor(state.second)
            .long(num)
            .int(i32::from(tensors.iter().all(|tensor| is_aligned(tensor))));
        for rate in rates {
            arguments = arguments.float(rate as f32);
        }
        launch(arguments, NAME, state.param, blocks_of(num))?;
    }
    Ok(())
}

/// The Euclidean norm over all elements of all `tensors` (f32, on one GPU); squares of neighbours are added in f32, the rest in
/// f64, in an order that depends on the sizes alone.
///
/// # Errors
/// Tensors that are elsewhere or not contiguous; no compiler or driver.
pub fn global_norm(tensors: &[Tensor]) -> Result<f64> {
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in tensors.iter().filter(|tensor| tensor.numel() > 0) {
        is_as(NAME, "gradient", tensor, (Kind::Float, &tensor.size(), tensor.device()))?;
        let num = tensor.numel() as i64;
        let parts_b = Tensor::f_empty([blocks_of(num)], (Kind::Double, tensor.device()))?;
        let arguments =
            Arguments::default().tensor(tensor).long(num).int(i32::from(is_aligned(tensor))).tensor(&parts_b);
        launch(arguments, "sum_of_squares", tensor, blocks_of(num))?;
        parts.push(parts_b);
    }
    if parts.is_empty() {
        return Ok(0.0);
    }
    Ok(Tensor::f_cat(&parts, 0)?.f_sum(Kind::Double)?.f_double_value(&[])?.sqrt())
}

fn is_aligned(tensor: &Tensor) -> bool {
    (tensor.data_ptr() as usize).is_multiple_of(16)
}

fn blocks_of(num: i64) -> i64 {
    ((num + 4 * THREADS - 1) / (4 * THREADS)).clamp(1, NUM_BLOCKS)
}

fn launch(arguments: Arguments, name: &'static str, like: &Tensor, num_blocks: i64) -> Result<()> {
    let defines = [bf16(like.kind()), ("THREADS", THREADS)];
    let program = Program { name: "adamw.cu", source: SOURCE, defines: &defines };
    let grid = [num_blocks as u32, 1, 1];
    // SAFETY: the arguments are those of the kernel, checked by the caller.
    unsafe { arguments.launch(device_of(NAME, like)?, (&program, name), (grid, THREADS)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernels_compile_for_every_supported_gpu() {
        for kind in [Kind::Float, Kind::BFloat16] {
            compiles(NAME, SOURCE, &[bf16(kind), ("THREADS", THREADS)]);
        }
    }
}
