//! The residual add and the RMS norm that follows it, forward and backward. Suffixes: t tokens, d hidden size.
#![expect(unsafe_code, reason = "launches kernels")]

use slime_cuda::Program;
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "train_norm";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("train_norm.cu"));
/// Most threads of a block, and elements of a row that they hold.
const MOST_THREADS: i64 = 256;
const MOST_HIDDEN: i64 = MOST_THREADS * 8 * 4;
/// Blocks that share the tokens of a pass: some for each of a large GPU's 132 multiprocessors, backward as many as are there at
/// once.
const FORWARD_BLOCKS: i64 = 132 * 16;
const BACKWARD_BLOCKS: i64 = 132 * 2;

/// Whether the kernels take rows of this width and kind there.
pub fn is_supported(kind: Kind, hidden: i64, device: Device) -> bool {
    is_element(kind, device) && hidden % 8 == 0 && (8..=MOST_HIDDEN).contains(&hidden)
}

/// What the forward pass gives.
#[derive(Debug)]
pub struct Normed {
    /// `x + delta` `[t, d]`, rounded; `x` itself without `delta`.
    pub sum_td: Tensor,
    /// Its RMS norm times the weight, `[t, d]`.
    pub out_td: Tensor,
    /// What the norm multiplied each row by, `[t]` f32.
    pub scale_t: Tensor,
}

/// The sum, its norm, and what [`backward`] needs; rounded as the operations of libtorch one by one.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn forward(x_td: &Tensor, delta_td: Option<&Tensor>, weight_d: &Tensor, eps: f64) -> Result<Normed> {
    let (num_tokens, hidden) = check(x_td, weight_d)?;
    if let Some(delta_td) = delta_td {
        is_as(NAME, "delta", delta_td, (x_td.kind(), &x_td.size(), x_td.device()))?;
    }
    let sum_td = match delta_td {
        Some(_) => x_td.f_empty_like()?,
        None => x_td.shallow_clone(),
    };
    let out_td = x_td.f_empty_like()?;
    let scale_t = Tensor::f_empty([num_tokens], (Kind::Float, x_td.device()))?;
    if num_tokens > 0 {
        let arguments = Arguments::default()
            .tensor(x_td)
            .optional(delta_td)
            .tensor(weight_d)
            .tensor(&sum_td)
            .tensor(&out_td)
            .tensor(&scale_t)
            .float(eps as f32)
            .int(num_tokens as i32);
        launch(arguments, "norm_forward", x_td, (hidden, num_tokens.min(FORWARD_BLOCKS)))?;
    }
    Ok(Normed { sum_td, out_td, scale_t })
}

/// Gradients of `x` (and of `delta`, the same) `[t, d]` and of the weight `[d]`, from those of the norm and, where there is
/// one, of the sum. Sums run in f32, in an order that depends on the number of tokens alone.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    (sum_td, weight_d, scale_t): (&Tensor, &Tensor, &Tensor),
    grad_out_td: &Tensor,
    grad_sum_td: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (num_tokens, hidden) = check(sum_td, weight_d)?;
    let matrix = (sum_td.kind(), &sum_td.size()[..], sum_td.device());
    is_as(NAME, "gradient of the norm", grad_out_td, matrix)?;
    if let Some(grad_sum_td) = grad_sum_td {
        is_as(NAME, "gradient of the sum", grad_sum_td, matrix)?;
    }
    is_as(NAME, "scales", scale_t, (Kind::Float, &[num_tokens], sum_td.device()))?;
    let grad_td = sum_td.f_empty_like()?;
    let num_blocks = num_tokens.clamp(1, BACKWARD_BLOCKS);
    let parts_bd = Tensor::f_empty([num_blocks, hidden], (Kind::Float, sum_td.device()))?;
    let arguments = Arguments::default()
        .tensor(sum_td)
        .tensor(weight_d)
        .tensor(scale_t)
        .tensor(grad_out_td)
        .optional(grad_sum_td)
        .tensor(&grad_td)
        .tensor(&parts_bd)
        .int(num_tokens as i32);
    launch(arguments, "norm_backward", sum_td, (hidden, num_blocks))?;
    let grad_d = parts_bd.f_sum_dim_intlist(0, false, Kind::Float)?.f_to_kind(weight_d.kind())?;
    Ok((grad_td, grad_d))
}

fn check(x_td: &Tensor, weight_d: &Tensor) -> Result<(i64, i64)> {
    let (num_tokens, hidden) = x_td.size2()?;
    let (kind, device) = (x_td.kind(), x_td.device());
    if !is_supported(kind, hidden, device) {
        return Err(refused(NAME, "rows", "f32 or bf16 on a GPU, a multiple of 8", format!("{x_td:?}")));
    }
    is_as(NAME, "rows", x_td, (kind, &[num_tokens, hidden], device))?;
    is_as(NAME, "weight", weight_d, (kind, &[hidden], device))?;
    Ok((num_tokens, hidden))
}

fn launch(
    arguments: Arguments,
    name: &'static str,
    like: &Tensor,
    (hidden, num_blocks): (i64, i64),
) -> Result<()> {
    let (defines, threads) = defines(like.kind(), hidden);
    let program = Program { name: "train_norm.cu", source: SOURCE, defines: &defines };
    let grid = [num_blocks as u32, 1, 1];
    // SAFETY: the arguments are those of the kernel, checked by the caller.
    unsafe { arguments.launch(device_of(NAME, like)?, (&program, name), (grid, threads)) }
}

fn defines(kind: Kind, hidden: i64) -> ([(&'static str, i64); 3], i64) {
    let threads = ((hidden / 8 + 31) / 32 * 32).min(MOST_THREADS);
    ([bf16(kind), ("HIDDEN", hidden), ("THREADS", threads)], threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernels_compile_for_every_supported_gpu() {
        for hidden in [8, 576, 4096, 8192] {
            for kind in [Kind::Float, Kind::BFloat16] {
                compiles(NAME, SOURCE, &defines(kind, hidden).0);
            }
        }
    }
}
