//! Splits the fused projection into q, k, v, norms the heads of q and k where the family does, and rotates them.
//!
//! Suffixes: t tokens, h query heads, g key-value heads, k `head_dim`, r half of its rotated dimensions.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use slime_config::QkNormScope;
use slime_torch::simd::Kernel;
use slime_torch::split_rows::sum_over_ranks;
use slime_torch::{Group, floats, floats_mut, rows_of};
use tch::{Kind, Tensor};

use super::add_norm::{rms_norm, rms_scale};
use super::{can_serve, each_row};
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
    /// Whether rotation pairs neighbours, not halves.
    pub is_interleaved: bool,
}

/// The norms of q and k.
#[derive(Debug)]
pub struct QkNorm {
    /// Weight of the q norm, `[k]`, over all heads `[h k]`.
    pub q_k: Tensor,
    /// Weight of the k norm, `[k]`, over all heads `[g k]`.
    pub k_k: Tensor,
    /// What is normed together.
    pub scope: QkNormScope,
    /// The epsilon of both.
    pub eps: f64,
    /// The ranks that have the heads between them, where all heads are normed together.
    pub group: Option<Group>,
}

/// [`serve`] where the inputs allow it, else [`reference`].
///
/// # Errors
/// The shapes do not fit.
pub fn qk_norm_rope(
    qkv: Tensor,
    heads: Heads,
    norm: Option<&QkNorm>,
    cos_tr: &Tensor,
    sin_tr: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (q_k, k_k) = norm.map_or((&qkv, &qkv), |norm| (&norm.q_k, &norm.k_k));
    if is_usual(heads, norm, cos_tr) && can_serve([&qkv, q_k, k_k, cos_tr, sin_tr]) {
        serve(qkv, heads, norm, cos_tr, sin_tr)
    } else {
        reference(&qkv, heads, norm, cos_tr, sin_tr)
    }
}

/// Whether whole heads are rotated in halves and normed one by one, the only way that [`serve`] and the kernels of a GPU know.
pub(super) fn is_usual(heads: Heads, norm: Option<&QkNorm>, cos_tr: &Tensor) -> bool {
    let is_whole = cos_tr.size().last().is_some_and(|half| 2 * half == heads.head_dim);
    is_whole && !heads.is_interleaved && norm.is_none_or(|norm| norm.scope == QkNormScope::Head)
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
    let rotate = |x: &Tensor| rotate(x, cos_tr, sin_tr, heads.is_interleaved);
    let (q_thk, k_tgk) = if let Some(norm) = norm {
        let q_thk = head_norm(&all.f_narrow(1, 0, heads.num_q)?, &norm.q_k, norm)?;
        let k_tgk = head_norm(&all.f_narrow(1, heads.num_q, heads.num_kv)?, &norm.k_k, norm)?;
        (rotate(&q_thk)?, rotate(&k_tgk)?)
    } else {
        let qk = rotate(&all.f_narrow(1, 0, heads.num_q + heads.num_kv)?)?;
        (qk.f_narrow(1, 0, heads.num_q)?, qk.f_narrow(1, heads.num_q, heads.num_kv)?)
    };
    Ok((q_thk, k_tgk, v_tgk))
}

/// The norm of heads one by one, or of all of them together.
fn head_norm(x_thk: &Tensor, weight: &Tensor, norm: &QkNorm) -> Result<Tensor> {
    match norm.scope {
        QkNormScope::Head => rms_norm(x_thk, weight, norm.eps),
        QkNormScope::AllHeads => {
            let (t, h, k) = x_thk.size3()?;
            let x = x_thk.f_reshape([t, h * k])?;
            let normed = match &norm.group {
                None => rms_norm(&x, weight, norm.eps)?,
                Some(group) => norm_over_ranks(&x, weight, norm.eps, group)?,
            };
            Ok(normed.f_view((t, h, k))?)
        }
    }
}

/// [`rms_norm`] of rows whose columns several ranks have between them. Where several hold the same ones, those count as often
/// in the width as in the sum.
fn norm_over_ranks(x: &Tensor, weight: &Tensor, eps: f64, group: &Group) -> Result<Tensor> {
    let kind = x.kind();
    let wide = x.f_to_kind(if kind == Kind::Double { kind } else { Kind::Float })?;
    let width = x.size2()?.1 as f64 * group.size() as f64;
    let sum = wide.f_square()?.f_sum_dim_intlist(-1, true, None::<Kind>)?;
    let mean = sum_over_ranks(&sum, group)?.f_div_scalar(width)?;
    let scale = mean.f_add_scalar(eps)?.f_rsqrt()?;
    Ok(wide.f_mul(&scale)?.f_to_kind(kind)?.f_mul(weight)?)
}

/// Rotates the first 2 r of the last dimension: the pairs (i, i + r), the half-split convention of `transformers`, or the
/// pairs (2 i, 2 i + 1).
fn rotate(x: &Tensor, cos_tr: &Tensor, sin_tr: &Tensor, is_interleaved: bool) -> Result<Tensor> {
    let kind = x.kind();
    let ((t, heads, dim), half) = (x.size3()?, cos_tr.size2()?.1);
    let (cos, sin) = (cos_tr.f_unsqueeze(1)?.f_to_kind(kind)?, sin_tr.f_unsqueeze(1)?.f_to_kind(kind)?);
    let (a, b) = if is_interleaved {
        let pairs = x.f_narrow(2, 0, 2 * half)?.f_reshape([t, heads, half, 2])?;
        (pairs.f_select(3, 0)?, pairs.f_select(3, 1)?)
    } else {
        (x.f_narrow(2, 0, half)?, x.f_narrow(2, half, half)?)
    };
    let first = a.f_mul(&cos)?.f_sub(&b.f_mul(&sin)?)?;
    let second = b.f_mul(&cos)?.f_add(&a.f_mul(&sin)?)?;
    let mut parts = if is_interleaved {
        vec![Tensor::f_stack(&[first, second], 3)?.f_view((t, heads, 2 * half))?]
    } else {
        vec![first, second]
    };
    if dim > 2 * half {
        parts.push(x.f_narrow(2, 2 * half, dim - 2 * half)?);
    }
    Ok(Tensor::f_cat(&parts, 2)?)
}

/// The same in the memory of `qkv`: the results are views of it.
///
/// # Errors
/// The shapes do not fit.
pub fn serve(
    mut qkv: Tensor,
    heads: Heads,
    norm: Option<&QkNorm>,
    cos_tr: &Tensor,
    sin_tr: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (t, width) = qkv.size2()?;
    let (cos, sin) = (rows_of(cos_tr)?, rows_of(sin_tr)?);
    let weights =
        norm.map(|norm| Ok::<_, crate::Error>((floats(&norm.q_k)?, floats(&norm.k_k)?))).transpose()?;
    let eps = norm.map_or(0.0, |norm| norm.eps);
    each_row(floats_mut(&mut qkv)?, width as usize, |at, row| {
        let (q, rest) = row.split_at_mut((heads.num_q * heads.head_dim) as usize);
        let (k, _) = rest.split_at_mut((heads.num_kv * heads.head_dim) as usize);
        Rotate { q, k, norm: weights, eps, cos: cos.row(at), sin: sin.row(at) }
    });
    let all = qkv.f_view((t, heads.num_q + 2 * heads.num_kv, heads.head_dim))?;
    Ok((
        all.f_narrow(1, 0, heads.num_q)?,
        all.f_narrow(1, heads.num_q, heads.num_kv)?,
        all.f_narrow(1, heads.num_q + heads.num_kv, heads.num_kv)?,
    ))
}

/// The heads of one token.
struct Rotate<'a> {
    q: &'a mut [f32],
    k: &'a mut [f32],
    norm: Option<(&'a [f32], &'a [f32])>,
    eps: f64,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rotate<'_> {
    #[inline(always)]
    fn run(self) {
        let (q_weight, k_weight) = self.norm.unzip();
        for (heads, weight) in [(self.q, q_weight), (self.k, k_weight)] {
            for head in heads.chunks_exact_mut(2 * self.cos.len()) {
                if let Some(weight) = weight {
                    let scale = rms_scale(head, self.eps);
                    head.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
                }
                let (first, second) = head.split_at_mut(self.cos.len());
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(self.cos).zip(self.sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}
