//! Splits the fused projection into q, k, v, norms the heads of q and k where the family does, and rotates them.
//!
//! Suffixes: t tokens, h query heads, g key-value heads, k `head_dim`, r half of it.

use tch::Tensor;

use super::add_norm::rms_norm;
use crate::Result;

/// The head counts of an attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Query heads.
    pub num_q: i64,
    /// Key and value heads.
    pub num_kv: i64,
    /// Width of one head.
    pub head_dim: i64,
}

/// The norms of q and k heads (Qwen3).
#[derive(Debug)]
pub struct QkNorm {
    /// Weight of the q norm, `[k]`.
    pub q_k: Tensor,
    /// Weight of the k norm, `[k]`.
    pub k_k: Tensor,
    /// The epsilon of both.
    pub eps: f64,
}

/// `(q_thk, k_tgk, v_tgk)` of `qkv` `[t, (h + 2 g) k]`; `cos_tr` and `sin_tr` as `Rope::cos_sin` makes them.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(
    qkv: &Tensor,
    heads: Heads,
    norm: Option<&QkNorm>,
    cos_tr: &Tensor,
    sin_tr: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let t = qkv.size2()?.0;
    let all = qkv.f_view((t, heads.num_q + 2 * heads.num_kv, heads.head_dim))?;
    let v_tgk = all.f_narrow(1, heads.num_q + heads.num_kv, heads.num_kv)?;
    let (q_thk, k_tgk) = if let Some(norm) = norm {
        let q_thk = rms_norm(&all.f_narrow(1, 0, heads.num_q)?, &norm.q_k, norm.eps)?;
        let k_tgk = rms_norm(&all.f_narrow(1, heads.num_q, heads.num_kv)?, &norm.k_k, norm.eps)?;
        (rotate(&q_thk, cos_tr, sin_tr)?, rotate(&k_tgk, cos_tr, sin_tr)?)
    } else {
        let qk = rotate(&all.f_narrow(1, 0, heads.num_q + heads.num_kv)?, cos_tr, sin_tr)?;
        (qk.f_narrow(1, 0, heads.num_q)?, qk.f_narrow(1, heads.num_q, heads.num_kv)?)
    };
    Ok((q_thk, k_tgk, v_tgk))
}

/// Rotates the pairs (i, i + r) of the last dimension, the half-split convention of `transformers`.
fn rotate(x: &Tensor, cos_tr: &Tensor, sin_tr: &Tensor) -> Result<Tensor> {
    let kind = x.kind();
    let half = x.size3()?.2 / 2;
    let (cos, sin) = (cos_tr.f_unsqueeze(1)?.f_to_kind(kind)?, sin_tr.f_unsqueeze(1)?.f_to_kind(kind)?);
    let (a, b) = (x.f_narrow(2, 0, half)?, x.f_narrow(2, half, half)?);
    let first = a.f_mul(&cos)?.f_sub(&b.f_mul(&sin)?)?;
    let second = b.f_mul(&cos)?.f_add(&a.f_mul(&sin)?)?;
    Ok(Tensor::f_cat(&[first, second], 2)?)
}
