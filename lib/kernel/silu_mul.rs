//! The gate of the MLP, forward and backward. Suffixes: t tokens, m intermediate size, n pairs of a token and an expert.
#![expect(unsafe_code, reason = "launches kernels")]

use slime_cuda::Program;
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "silu_mul";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("silu_mul.cu"));
const THREADS: i64 = 128;

/// Whether [`serve`] takes rows of `2 * width` elements of this kind there.
pub fn is_supported(kind: Kind, width: i64, device: Device) -> bool {
    is_element(kind, device) && width % 8 == 0 && width > 0
}

/// Writes `silu(gate) * up` `[t, m]` of `gate_up` `[t, 2 m]`, gate first, to `out_tm`.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn serve(gate_up: &Tensor, out_tm: &Tensor) -> Result<()> {
    let (num_tokens, width) = check(gate_up, out_tm, "output")?;
    if num_tokens == 0 {
        return Ok(());
    }
    let arguments = Arguments::default().tensor(gate_up).tensor(out_tm).int(width as i32);
    launch(arguments, NAME, out_tm, [num_tokens, blocks_of(width)])
}

/// The gradient of `gate_up` `[t, 2 m]` from that of [`serve`]'s output, computed in f32 and rounded once.
///
/// # Errors
/// As [`serve`].
pub fn backward(gate_up: &Tensor, grad_out_tm: &Tensor) -> Result<Tensor> {
    let (num_tokens, width) = check(gate_up, grad_out_tm, "gradient of the output")?;
    let grad = gate_up.f_empty_like()?;
    if num_tokens > 0 {
        let arguments =
            Arguments::default().tensor(gate_up).tensor(grad_out_tm).tensor(&grad).int(width as i32);
        launch(arguments, "silu_mul_backward", gate_up, [num_tokens, blocks_of(width)])?;
    }
    Ok(grad)
}

/// What [`expert_backward`] gives.
#[derive(Debug)]
pub struct ExpertGradients {
    /// Of gate and up, `[n, 2 m]`.
    pub gate_up: Tensor,
    /// `silu(gate) * up` times the weight, `[n, m]`: what the gradient of the next matrix is made of.
    pub weighted_nm: Tensor,
    /// Of the weights, `[n]` f32.
    pub weight_n: Tensor,
}

/// The backward pass of `silu(gate) * up` for pairs whose results are multiplied by `weight_n` (f32) behind the next product;
/// `slope_nm` is the gradient of the gated activation as if all weights were 1.
///
/// # Errors
/// As [`serve`].
pub fn expert_backward(gate_up: &Tensor, slope_nm: &Tensor, weight_n: &Tensor) -> Result<ExpertGradients> {
    let (num_rows, width) = check(gate_up, slope_nm, "gradient of the activation")?;
    is_as(NAME, "weights", weight_n, (Kind::Float, &[num_rows], gate_up.device()))?;
    let gradients = ExpertGradients {
        gate_up: gate_up.f_empty_like()?,
        weighted_nm: slope_nm.f_empty_like()?,
        weight_n: weight_n.f_empty_like()?,
    };
    if num_rows > 0 {
        let arguments = Arguments::default()
            .tensor(gate_up)
            .tensor(slope_nm)
            .tensor(weight_n)
            .tensor(&gradients.gate_up)
            .tensor(&gradients.weighted_nm)
            .tensor(&gradients.weight_n)
            .int(width as i32);
        launch(arguments, "expert_gate_backward", gate_up, [num_rows, 1])?;
    }
    Ok(gradients)
}

/// Rows and width of two matrices that belong together.
fn check(gate_up: &Tensor, other: &Tensor, what: &'static str) -> Result<(i64, i64)> {
    let (num_rows, width) = other.size2()?;
    let (kind, device) = (gate_up.kind(), gate_up.device());
    if !is_supported(kind, width, device) {
        return Err(refused(NAME, what, "f32 or bf16 on a GPU, a multiple of 8", format!("{other:?}")));
    }
    is_as(NAME, "gate and up", gate_up, (kind, &[num_rows, 2 * width], device))?;
    is_as(NAME, what, other, (kind, &[num_rows, width], device))?;
    Ok((num_rows, width))
}

fn blocks_of(width: i64) -> i64 {
    (width / 8 + THREADS - 1) / THREADS
}

fn launch(arguments: Arguments, name: &'static str, like: &Tensor, [x, y]: [i64; 2]) -> Result<()> {
    let defines = [bf16(like.kind()), ("THREADS", THREADS)];
    let program = Program { name: "silu_mul.cu", source: SOURCE, defines: &defines };
    // SAFETY: the arguments are those of the kernel, checked by the caller.
    unsafe { arguments.launch(device_of(NAME, like)?, (&program, name), ([x as u32, y as u32, 1], THREADS)) }
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
