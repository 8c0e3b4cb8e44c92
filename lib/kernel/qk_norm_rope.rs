//! Splits the fused projection into q and the cache's k and v, norms heads where the family does, and rotates them. Suffixes:
//! t tokens, h query heads, g key-value heads, k `head_dim`, r half of it, p slots of the cache.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};
use crate::kv_fp8::{CODES, define};

const NAME: &str = "qk_norm_rope";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("qk_norm_rope.cu"));
const THREADS: i64 = 128;

/// Whether [`serve`] takes heads of this kind and width there.
pub fn is_supported(kind: Kind, head_dim: i64, device: Device) -> bool {
    is_element(kind, device) && matches!(head_dim, 64 | 128 | 256)
}

/// The weights of the norms of q and k heads `[k]`, and their epsilon.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Of q.
    pub q_k: &'a Tensor,
    /// Of k.
    pub k_k: &'a Tensor,
    /// Of both.
    pub eps: f64,
}

/// Where each token is: angles `[t, r]` in f32, and slots `[t]` i64 of the cache (below 0: k and v are not kept).
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Cosines.
    pub cos_tr: &'a Tensor,
    /// Sines.
    pub sin_tr: &'a Tensor,
    /// Slots.
    pub slots_t: &'a Tensor,
}

/// Writes the query heads of `qkv` `[t, (h + 2 g) k]` to `q_thk` and its keys and values to their slots of the cache, which may hold
/// codes of [`crate::kv_fp8`] (`sm_89` and later).
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn serve(
    qkv: &Tensor,
    norm: Option<Norm<'_>>,
    places: Places<'_>,
    q_thk: &Tensor,
    (keys_pgk, values_pgk): (&Tensor, &Tensor),
) -> Result<()> {
    let (num_tokens, heads, dim) = q_thk.size3()?;
    let (num_slots, kv_heads, _) = keys_pgk.size3()?;
    let (kind, device) = (q_thk.kind(), q_thk.device());
    if !is_supported(kind, dim, device) {
        return Err(refused(
            NAME,
            "queries",
            "f32 or bf16 heads of 64, 128 or 256 on a GPU",
            format!("{q_thk:?}"),
        ));
    }
    let all = heads + 2 * kv_heads;
    is_as(NAME, "projection", qkv, (kind, &[num_tokens, all * dim], device))?;
    is_as(NAME, "queries", q_thk, (kind, &[num_tokens, heads, dim], device))?;
    for (what, cache) in [("keys", keys_pgk), ("values", values_pgk)] {
        let of_cache = if keys_pgk.kind() == CODES { CODES } else { kind };
        is_as(NAME, what, cache, (of_cache, &[num_slots, kv_heads, dim], device))?;
    }
    for (what, angles) in [("cosines", places.cos_tr), ("sines", places.sin_tr)] {
        is_as(NAME, what, angles, (Kind::Float, &[num_tokens, dim / 2], device))?;
    }
    is_as(NAME, "slots", places.slots_t, (Kind::Int64, &[num_tokens], device))?;
    for weight in norm.iter().flat_map(|norm| [norm.q_k, norm.k_k]) {
        is_as(NAME, "weights of the norms", weight, (kind, &[dim], device))?;
    }
    if num_tokens == 0 {
        return Ok(());
    }
    let number = device_of(NAME, q_thk)?;
    let defines = defines((kind, keys_pgk.kind()), heads, kv_heads, dim);
    let program = Program { name: "qk_norm_rope.cu", source: SOURCE, defines: &defines };
    let arguments = Arguments::default()
        .tensor(qkv)
        .optional(norm.map(|norm| norm.q_k))
        .optional(norm.map(|norm| norm.k_k))
        .tensor(places.cos_tr)
        .tensor(places.sin_tr)
        .tensor(places.slots_t)
        .tensor(q_thk)
        .tensor(keys_pgk)
        .tensor(values_pgk)
        .float(norm.map_or(0.0, |norm| norm.eps) as f32);
    let warps = THREADS / 32;
    let grid = [num_tokens as u32, ((all + warps - 1) / warps) as u32, 1];
    // SAFETY: the arguments are those of the kernel, checked above. Slots are the caller's, who made them from blocks of this cache.
    unsafe { arguments.launch(number, (&program, NAME), (grid, THREADS)) }
}

fn defines((kind, cache): (Kind, Kind), heads: i64, kv_heads: i64, dim: i64) -> [(&'static str, i64); 6] {
    let shape = [("HEAD_DIM", dim), ("NUM_HEADS", heads), ("NUM_KV_HEADS", kv_heads)];
    [bf16(kind), define(cache), shape[0], shape[1], shape[2], ("THREADS", THREADS)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{compiles, compiles_for};

    #[test]
    fn kernel_compiles_for_every_supported_gpu_and_shape() {
        for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128), (16, 16, 256)] {
            for kind in [Kind::Float, Kind::BFloat16] {
                compiles(NAME, SOURCE, &defines((kind, kind), heads, kv_heads, dim));
                let fp8 = defines((kind, CODES), heads, kv_heads, dim);
                compiles_for(&["sm_89", "sm_90", "sm_100"], NAME, SOURCE, &fp8);
            }
        }
    }
}
