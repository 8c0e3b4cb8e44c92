//! Attention of a packed or paged batch. Suffixes: t tokens, h query heads, g key-value heads, k `head_dim`.

use slime_kernel::kv_fp8;
use slime_torch::split_rows::{Readers, gather_rows};
use slime_torch::{floats_mut, rows_of};
use tch::{Device, Kind, Tensor};

use super::{packed_attention, paged_attention, ring_attention};
use crate::context::{ContextGroup, Gather};
use crate::kv_cache::LayerKv;
use crate::spans::{Span, causal_after};
use crate::{Context, Error, Paged, Result};

/// Sequences with fewer new tokens than this go through the decode path.
pub(crate) const PREFILL_LEN: usize = 5;

/// Attention output `[t, h * k]` of layer `at`; a paged context also keeps the keys and values.
///
/// # Errors
/// The shapes do not fit the context.
pub fn attend(
    context: &mut Context<'_>,
    at: usize,
    q_thk: &Tensor,
    k_tgk: &Tensor,
    v_tgk: &Tensor,
) -> Result<Tensor> {
    match context {
        Context::Packed(packed) => match &packed.lists {
            Some(lists) => packed_attention::attend(lists, q_thk, k_tgk, v_tgk),
            None => packed_part(packed.cp.as_ref(), &packed.spans, q_thk, k_tgk, v_tgk),
        },
        Context::Paged(paged) => serve(paged, at, q_thk, k_tgk, v_tgk),
    }
}

/// Attention of this rank's queries, over the keys and values of all ranks that have the tokens between them.
///
/// # Errors
/// The shapes do not fit, or a failed collective.
pub(crate) fn packed_part(
    cp: Option<&ContextGroup>,
    spans: &[Span],
    q_thk: &Tensor,
    k_tgk: &Tensor,
    v_tgk: &Tensor,
) -> Result<Tensor> {
    let Gather { group, counts, places_t } = match cp {
        None => return reference(spans, q_thk, k_tgk, v_tgk),
        Some(ContextGroup::Ring(ring)) => return ring_attention::train(ring, q_thk, k_tgk, v_tgk),
        Some(ContextGroup::Gather(gather)) => gather,
    };
    // One message for both.
    let num_kv = k_tgk.size3()?.1;
    let kv = gather_rows(&Tensor::f_cat(&[k_tgk, v_tgk], 1)?, group, counts.clone(), Readers::Part)?;
    let kv = kv.f_index_select(0, places_t)?;
    let (k, v) = (kv.f_narrow(1, 0, num_kv)?, kv.f_narrow(1, num_kv, num_kv)?);
    if spans.is_empty() {
        // No query, but the gradients of the others' pass through here.
        let (t, heads, dim) = q_thk.size3()?;
        let out = q_thk.f_reshape([t, heads * dim])?;
        return Ok(out.f_add(&kv.f_sum(kv.kind())?.f_mul_scalar(0.0)?)?);
    }
    reference(spans, q_thk, &k, &v)
}

/// Attention of whole sequences, span by span.
///
/// # Errors
/// The shapes do not fit.
pub(crate) fn reference(spans: &[Span], q_thk: &Tensor, k_tgk: &Tensor, v_tgk: &Tensor) -> Result<Tensor> {
    let rows = |x: &Tensor, (start, len): (usize, usize)| x.f_narrow(0, start as i64, len as i64);
    let mut outputs = Vec::with_capacity(spans.len());
    for span in spans {
        let keys = |x: &Tensor| match span.prefix {
            Some(prefix) => Tensor::f_cat(&[rows(x, prefix)?, rows(x, span.keys)?], 0),
            None => rows(x, span.keys),
        };
        outputs.push(dense(&rows(q_thk, span.q)?, &keys(k_tgk)?, &keys(v_tgk)?, span.mask.as_ref())?);
    }
    Ok(Tensor::f_cat(&outputs, 0)?)
}

/// Attention `[q, h * k]` of one range of queries over its keys; without a mask causal and as long as the keys.
fn dense(q_qhk: &Tensor, k_kgk: &Tensor, v_kgk: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (num_q, heads, dim) = q_qhk.size3()?;
    let (num_k, kv_heads, _) = k_kgk.size3()?;
    let per_kv = heads / kv_heads;
    // The key-value head is the batch dimension, so sharing keys among its query heads is a stride of zero.
    let q = q_qhk.f_view((num_q, kv_heads, per_kv, dim))?.f_permute([1, 2, 0, 3])?;
    let widen =
        |x: &Tensor| x.f_permute([1, 0, 2])?.f_unsqueeze(1)?.f_expand([kv_heads, per_kv, num_k, dim], false);
    let (mut k, mut v) = (widen(k_kgk)?, widen(v_kgk)?);
    if q.device().is_cuda() && q.kind() == Kind::Float {
        // libtorch 2.11's kernel for f32 gets the last query wrong over shared keys (193 queries of 690 keys: off by 0.1).
        (k, v) = (k.f_contiguous()?, v.f_contiguous()?);
    }
    let out = Tensor::f_scaled_dot_product_attention(&q, &k, &v, mask, 0.0, mask.is_none(), None, false)?;
    Ok(out.f_permute([2, 0, 1, 3])?.f_reshape([num_q, heads * dim])?)
}

/// Keeps the new keys and values, then attends: long chunks densely, the others over their blocks.
fn serve(paged: &mut Paged<'_>, at: usize, q_thk: &Tensor, k_tgk: &Tensor, v_tgk: &Tensor) -> Result<Tensor> {
    let shape = paged.kv.shape();
    let (block_tables, q_lens, context_lens) = (paged.block_tables, &paged.q_lens, &paged.context_lens);
    let batch = paged_attention::Batch { block_tables, q_lens, context_lens, shape };
    let (t, heads, dim) = q_thk.size3()?;
    let is_fp8 = paged.kv.is_fp8();
    // Also what attends to itself sees what the cache will have of it.
    let kept = |x: &Tensor| if is_fp8 { kv_fp8::encode(x) } else { Ok(x.shallow_clone()) };
    let (k_kept, v_kept) = (kept(k_tgk)?, kept(v_tgk)?);
    let seen = |x: &Tensor| kv_fp8::decode(x, q_thk.kind());
    let (k_tgk, v_tgk) = (&seen(&k_kept)?, &seen(&v_kept)?);
    let new = (q_thk, k_tgk, v_tgk);
    match paged.kv.layer_mut(at)? {
        LayerKv::Host { k, v } => {
            let wide = [q_thk, k_tgk, v_tgk].map(|x| x.f_to_kind(Kind::Float));
            let [q_f32, k_f32, v_f32] = wide;
            batch.keep((k, v), rows_of(&k_f32?)?, rows_of(&v_f32?)?);
            let mut out = Tensor::f_empty([t, heads * dim], (Kind::Float, Device::Cpu))?;
            paged_attention::serve(&batch, PREFILL_LEN, rows_of(&q_f32?)?, (k, v), floats_mut(&mut out)?);
            let cached = |seq, len| -> Result<(Tensor, Tensor)> {
                let (k, v) = batch.gather((k, v), seq, len);
                let tensor = |rows: &[f32]| {
                    let rows = Tensor::f_from_slice(rows)?;
                    rows.f_view((len as i64, shape.num_kv_heads as i64, dim))?.f_to_kind(q_thk.kind())
                };
                Ok((tensor(&k)?, tensor(&v)?))
            };
            for (start, rows) in dense_chunks(&batch, PREFILL_LEN, new, cached)? {
                out.f_narrow(0, start as i64, rows.size2()?.0)?.f_copy_(&rows)?;
            }
            Ok(out.f_to_kind(q_thk.kind())?)
        }
        LayerKv::Device { k, v } => {
            let Some(on_device) = &paged.on_device else {
                return Err(Error::Context { what: "batches on the device", expected: 1, got: 0 });
            };
            let _ = k.f_index_copy_(0, &on_device.slots_t, &k_kept)?;
            let _ = v.f_index_copy_(0, &on_device.slots_t, &v_kept)?;
            let has_kernel = slime_kernel::paged_attention::is_supported(q_thk.kind(), dim, q_thk.device());
            let out_thk = Tensor::f_empty([t, heads, dim], (q_thk.kind(), q_thk.device()))?;
            if has_kernel {
                // Queries are columns of the fused product.
                let q_thk = q_thk.f_contiguous()?;
                slime_kernel::paged_attention::serve(&out_thk, &q_thk, (k, v), &on_device.decode)?;
            }
            let cached = |seq, len| {
                let slots =
                    Tensor::f_from_slice(&batch.slots_of(seq, 0..len))?.f_to_device(q_thk.device())?;
                Ok((seen(&k.f_index_select(0, &slots)?)?, seen(&v.f_index_select(0, &slots)?)?))
            };
            let out = out_thk.f_view((t, heads * dim))?;
            for (start, rows) in dense_chunks(&batch, if has_kernel { PREFILL_LEN } else { 0 }, new, cached)?
            {
                out.f_narrow(0, start as i64, rows.size2()?.0)?.f_copy_(&rows)?;
            }
            Ok(out)
        }
    }
}

/// First row and output of every sequence with at least `min_len` new tokens `(q, k, v)`; `cached(seq, len)` gives the
/// keys and values of the first `len` positions of a sequence.
fn dense_chunks(
    batch: &paged_attention::Batch<'_>,
    min_len: usize,
    (q_thk, k_tgk, v_tgk): (&Tensor, &Tensor, &Tensor),
    cached: impl Fn(usize, usize) -> Result<(Tensor, Tensor)>,
) -> Result<Vec<(usize, Tensor)>> {
    let mut next = 0;
    let mut outputs = Vec::new();
    for (seq, (&q_len, &context_len)) in batch.q_lens.iter().zip(batch.context_lens).enumerate() {
        let start = next;
        next += q_len;
        if q_len < min_len || q_len == 0 {
            continue;
        }
        let rows = |x: &Tensor| x.f_narrow(0, start as i64, q_len as i64);
        let (q, k, v) = (rows(q_thk)?, rows(k_tgk)?, rows(v_tgk)?);
        let before = context_len - q_len;
        let output = if before == 0 {
            dense(&q, &k, &v, None)?
        } else {
            let (old_k, old_v) = cached(seq, before)?;
            let mask = causal_after(before, q_len, q.kind(), q.device())?;
            dense(&q, &Tensor::f_cat(&[old_k, k], 0)?, &Tensor::f_cat(&[old_v, v], 0)?, Some(&mask))?
        };
        outputs.push((start, output));
    }
    Ok(outputs)
}
