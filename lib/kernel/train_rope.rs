//! The backward pass of [`crate::qk_norm_rope`]: gradients of the fused projection and of the norms of heads. Suffixes: t tokens,
//! h query heads, g key-value heads, k `head_dim`, r half of it.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, refused};
use crate::qk_norm_rope::{Norm, is_supported};

const NAME: &str = "rope_backward";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("train_rope.cu"));
const THREADS: i64 = 128;
/// Blocks that share the heads of all tokens: some for each of a large GPU's 132 multiprocessors.
const NUM_BLOCKS: i64 = 132 * 16;

/// Gradients.
#[derive(Debug)]
pub struct Gradients {
    /// Of the projection, `[t, (h + 2 g) k]`.
    pub qkv: Tensor,
    /// Of the weights of the norms of q and k, `[k]` each; none without norms.
    pub weights: Option<(Tensor, Tensor)>,
}

/// The gradients for those of the rotated heads, `grad_q_thk` and `grad_k_tgk`, and of the values, `grad_v_tgk`; `qkv`, norm and
/// angles (`[t, r]` f32) are those of the forward pass.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn backward(
    qkv: &Tensor,
    norm: Option<Norm<'_>>,
    (cos_tr, sin_tr): (&Tensor, &Tensor),
    (grad_q_thk, grad_k_tgk, grad_v_tgk): (&Tensor, &Tensor, &Tensor),
) -> Result<Gradients> {
    let (num_tokens, heads, dim) = grad_q_thk.size3()?;
    let kv_heads = grad_k_tgk.size3()?.1;
    let (kind, device) = (qkv.kind(), qkv.device());
    if !is_supported(kind, dim, device) {
        let expected = "f32 or bf16 heads of 64, 128 or 256 on a GPU";
        return Err(refused(NAME, "heads", expected, format!("{qkv:?}")));
    }
    let all = heads + 2 * kv_heads;
    is_as(NAME, "projection", qkv, (kind, &[num_tokens, all * dim], device))?;
    is_as(NAME, "gradient of queries", grad_q_thk, (kind, &[num_tokens, heads, dim], device))?;
    for (what, grad) in [("gradient of keys", grad_k_tgk), ("gradient of values", grad_v_tgk)] {
        is_as(NAME, what, grad, (kind, &[num_tokens, kv_heads, dim], device))?;
    }
    for (what, angles) in [("cosines", cos_tr), ("sines", sin_tr)] {
        is_as(NAME, what, angles, (Kind::Float, &[num_tokens, dim / 2], device))?;
    }
    for weight in norm.iter().flat_map(|norm| [norm.q_k, norm.k_k]) {
        is_as(NAME, "weights of the norms", weight, (kind, &[dim], device))?;
    }
    let grad_qkv = qkv.f_empty_like()?;
    let warps = THREADS / 32;
    let num_blocks = ((num_tokens * all + warps - 1) / warps).clamp(1, NUM_BLOCKS);
    let size = [num_blocks * warps, 2, dim];
    let parts = norm.map(|_| Tensor::f_empty(size, (Kind::Float, device))).transpose()?;
    let arguments = Arguments::default()
        .tensor(qkv)
        .optional(norm.map(|norm| norm.q_k))
        .optional(norm.map(|norm| norm.k_k))
        .tensor(cos_tr)
        .tensor(sin_tr)
        .tensor(grad_q_thk)
        .tensor(grad_k_tgk)
        .tensor(grad_v_tgk)
        .tensor(&grad_qkv)
        .optional(parts.as_ref())
        .float(norm.map_or(0.0, |norm| norm.eps) as f32)
        .int(num_tokens as i32);
    let defines = defines(kind, heads, kv_heads, dim);
    let program = Program { name: "train_rope.cu", source: SOURCE, defines: &defines };
    let grid = [num_blocks as u32, 1, 1];
    // SAFETY: the arguments are those of the kernel, checked above.
    unsafe { arguments.launch(device_of(NAME, qkv)?, (&program, NAME), (grid, THREADS))? };
    let weights = match parts {
        None => None,
        Some(parts) => {
            let sums = parts.f_sum_dim_intlist(0, false, Kind::Float)?.f_to_kind(kind)?;
            Some((sums.f_select(0, 0)?, sums.f_select(0, 1)?))
        }
    };
    Ok(Gradients { qkv: grad_qkv, weights })
}

fn defines(kind: Kind, heads: i64, kv_heads: i64, dim: i64) -> [(&'static str, i64); 5] {
    let shape = [("HEAD_DIM", dim), ("NUM_HEADS", heads), ("NUM_KV_HEADS", kv_heads)];
    [bf16(kind), shape[0], shape[1], shape[2], ("THREADS", THREADS)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu_and_shape() {
        for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128), (16, 16, 256)] {
            for kind in [Kind::Float, Kind::BFloat16] {
                compiles(NAME, SOURCE, &defines(kind, heads, kv_heads, dim));
            }
        }
    }
}
