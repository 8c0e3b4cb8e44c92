//! From the fused projection to the output of attention: heads, rotation, cache and scores. Suffixes: t tokens, h query heads,
//! k `head_dim`, p slots of the cache.

use std::sync::Arc;

use slime_kernel::kv_fp8;
use slime_kernel::qk_norm_rope::{Norm, Places};
use slime_torch::Group;
use tch::{Kind, Tensor};

use super::attend::{self, attend};
use super::qk_norm_rope::{self, Heads, QkNorm, is_usual, qk_norm_rope};
use super::ring_attention::Ring;
use super::{can_serve_on_gpu, packed_attention};
use crate::context::{ContextGroup, Gather};
use crate::kv_cache::LayerKv;
use crate::packed_lists::PackedLists;
use crate::spans::Span;
use crate::{Context, Error, Packed, Paged, Result};

/// Attention output `[t, h * k]` of layer `at` for its projection `qkv` `[t, (h + 2 g) k]`; a paged context also keeps the keys
/// and values. `cos_sin` as `Rope::cos_sin` makes them.
///
/// # Errors
/// The shapes do not fit the context.
pub fn attention(
    context: &mut Context<'_>,
    at: usize,
    qkv: Tensor,
    (heads, norm): (Heads, Option<&QkNorm>),
    cos_sin: &(Tensor, Tensor),
) -> Result<Tensor> {
    if let Context::Paged(paged) = context
        && is_usual(heads, norm, &cos_sin.0)
        && has_kernels(paged, &qkv, heads)
    {
        return serve_on_gpu(paged, at, &qkv, (heads, norm), cos_sin);
    }
    if let Context::Packed(packed) = context {
        let is_fused = is_usual(heads, norm, &cos_sin.0)
            && qkv.is_contiguous()
            && slime_kernel::qk_norm_rope::is_supported(qkv.kind(), heads.head_dim, qkv.device());
        if let Some(lists) = packed.lists.as_ref().filter(|_| is_fused) {
            return packed_attention::train(lists, &qkv, (heads, norm), cos_sin);
        }
        if packed.recomputes_ops {
            return recomputed(packed, &qkv, (heads, norm), cos_sin);
        }
    }
    let (q, k, v) = qk_norm_rope(qkv, heads, norm, &cos_sin.0, &cos_sin.1)?;
    attend(context, at, &q, &k, &v)
}

/// The same of a packed batch, keeping for the backward pass the projection alone.
fn recomputed(
    Packed { spans, lists, cp, .. }: &Packed,
    qkv: &Tensor,
    (heads, norm): (Heads, Option<&QkNorm>),
    (cos_tr, sin_tr): &(Tensor, Tensor),
) -> Result<Tensor> {
    let mut inputs = vec![qkv, cos_tr, sin_tr];
    inputs.extend(norm.iter().flat_map(|norm| [&norm.q_k, &norm.k_k]));
    let num_weights = inputs.len();
    inputs.extend(spans.iter().filter_map(|span| span.mask.as_ref()));
    let ranks = cp.as_ref().map(Ranks::of);
    if let Some(ContextGroup::Gather(gather)) = cp {
        inputs.push(&gather.places_t);
    }
    let places: Vec<_> =
        spans.iter().map(|span| (span.q, span.prefix, span.keys, span.mask.is_some())).collect();
    let num_masks = places.iter().filter(|(.., is_masked)| *is_masked).count();
    let (shape, list_tensors) = lists.as_ref().map(PackedLists::parts).unzip();
    inputs.extend(list_tensors.iter().flatten());
    let norm = norm.map(|norm| (norm.scope, norm.eps, norm.group.clone()));
    let function = move |inputs: &[Tensor]| {
        let (weights, others) = inputs.split_at(num_weights.min(inputs.len()));
        let (masks, rest) = others.split_at(num_masks.min(others.len()));
        let [qkv, cos_tr, sin_tr, norms @ ..] = weights else {
            let what = "inputs of attention";
            return Err(Error::Context { what, expected: num_weights, got: weights.len() });
        };
        let norm = match (&norm, norms) {
            (Some((scope, eps, group)), [q_k, k_k]) => Some(QkNorm {
                q_k: q_k.shallow_clone(),
                k_k: k_k.shallow_clone(),
                scope: *scope,
                eps: *eps,
                group: group.clone(),
            }),
            _ => None,
        };
        let (q, k, v) = qk_norm_rope::reference(qkv, heads, norm.as_ref(), cos_tr, sin_tr)?;
        if let Some(shape) = shape {
            let (lists, _) = PackedLists::from_parts(shape, rest)?;
            return packed_attention::attend(&lists, &q, &k, &v);
        }
        let mut masks = masks.iter().map(Tensor::shallow_clone);
        let span = |(q, prefix, keys, is_masked): (_, _, _, bool)| Span {
            q,
            prefix,
            keys,
            mask: if is_masked { masks.next() } else { None },
        };
        let spans: Vec<Span> = places.iter().copied().map(span).collect();
        let cp = ranks.as_ref().and_then(|ranks| ranks.with(rest.first()));
        attend::packed_part(cp.as_ref(), &spans, &q, &k, &v)
    };
    let text = move |inputs: &[Tensor]| function(inputs).map_err(|error| error.to_string());
    Ok(slime_torch::recomputed(&inputs, text)?)
}

/// A [`ContextGroup`] without its tensors.
enum Ranks {
    Gather(Group, Vec<usize>),
    Ring(Arc<Ring>),
}

impl Ranks {
    fn of(cp: &ContextGroup) -> Self {
        match cp {
            ContextGroup::Gather(gather) => Self::Gather(gather.group.clone(), gather.counts.clone()),
            ContextGroup::Ring(ring) => Self::Ring(ring.clone()),
        }
    }

    fn with(&self, places_t: Option<&Tensor>) -> Option<ContextGroup> {
        match self {
            Self::Ring(ring) => Some(ContextGroup::Ring(ring.clone())),
            Self::Gather(group, counts) => {
                let (group, counts, places_t) = (group.clone(), counts.clone(), places_t?.shallow_clone());
                Some(ContextGroup::Gather(Gather { group, counts, places_t }))
            }
        }
    }
}

/// Whether the kernels of a GPU take all of a batch: long chunks there are for bf16 alone.
fn has_kernels(paged: &Paged<'_>, qkv: &Tensor, heads: Heads) -> bool {
    let Some(batch) = &paged.on_device else { return false };
    let (kind, device) = (qkv.kind(), qkv.device());
    can_serve_on_gpu([qkv])
        && qkv.is_contiguous()
        && slime_kernel::qk_norm_rope::is_supported(kind, heads.head_dim, device)
        && slime_kernel::paged_attention::is_supported(kind, heads.head_dim, device)
        && (kind == Kind::BFloat16 || batch.prefill.is_none())
}

fn serve_on_gpu(
    paged: &mut Paged<'_>,
    at: usize,
    qkv: &Tensor,
    (heads, norm): (Heads, Option<&QkNorm>),
    (cos_tr, sin_tr): &(Tensor, Tensor),
) -> Result<Tensor> {
    let Paged { kv, on_device, workspace, .. } = paged;
    let (Some(batch), LayerKv::Device { k: keys_pgk, v: values_pgk }) = (&on_device, kv.layer_mut(at)?)
    else {
        return Err(Error::Context { what: "batches on the device", expected: 1, got: 0 });
    };
    let (t, options) = (qkv.size2()?.0, (qkv.kind(), qkv.device()));
    let size = [t, heads.num_q, heads.head_dim];
    let (q_thk, out_thk) = (workspace.empty(&size, options)?, workspace.empty(&size, options)?);
    let norm = norm.map(|QkNorm { q_k, k_k, eps, .. }| Norm { q_k, k_k, eps: *eps });
    let places = Places { cos_tr, sin_tr, slots_t: &batch.slots_t };
    let cache = (&*keys_pgk, &*values_pgk);
    slime_kernel::qk_norm_rope::serve(qkv, norm, places, &q_thk, cache)?;
    slime_kernel::paged_attention::serve(&out_thk, &q_thk, cache, &batch.decode)?;
    if let Some(prefill) = &batch.prefill {
        let rows = |x: &Tensor, rows: &Tensor| x.f_index_select(0, rows);
        let cached = |x: &Tensor| kv_fp8::decode(&rows(x, &prefill.slots_s)?, q_thk.kind());
        let (k, v) = (cached(cache.0)?, cached(cache.1)?);
        let q = rows(&q_thk, &prefill.rows_q)?;
        let attended = slime_torch::varlen_attention(&q, &k, &v, &prefill.chunks)?;
        let mut all = out_thk.shallow_clone();
        let _ = all.f_index_copy_(0, &prefill.rows_q, &attended)?;
    }
    Ok(out_thk.f_view((t, heads.num_q * heads.head_dim))?)
}
