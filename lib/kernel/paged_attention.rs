//! Attention of single tokens over keys and values in blocks. Suffixes: t tokens, n items (rows of t), h query heads,
//! g key-value heads, k `head_dim`, p slots of the cache, s sequences, b blocks of a sequence.
//!
//! Split over positions as in Flash-Decoding (Dao et al. 2023), with the online softmax of Milakov and Gimelshein (arXiv
//! 1805.02867).
#![expect(unsafe_code, reason = "launches a kernel")]

use std::ffi::c_void;

use slime_cuda::{Launch, Program};
use slime_torch::cuda::current_stream;
use tch::{Device, Kind, Tensor};

use crate::kv_fp8::{CODES, decode, define};
use crate::registry::functions;
use crate::{Error, Result};

/// Positions that a thread block takes; a constant, so that a token's result does not depend on its batch.
const SPLIT: i64 = 512;
/// Threads of a block.
const THREADS: i64 = 128;
/// Most query heads of a block: their queries and sums live in registers.
const MAX_GROUP: i64 = 8;
const NAME: &str = "paged_attention";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("paged_attention.cu"));

/// Which tokens attend to what.
#[derive(Debug)]
pub struct Items {
    /// Rows of the queries, `[n]` i32.
    pub rows_n: Tensor,
    /// Sequence of each, `[n]` i32.
    pub seqs_n: Tensor,
    /// How many positions of its sequence it sees, at least 1, `[n]` i32.
    pub visible_n: Tensor,
    /// Blocks of every sequence, `[s, b]` i32; what lies beyond a sequence's end is not read.
    pub tables_sb: Tensor,
    /// The largest of `visible_n`.
    pub max_visible: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Memory for what the splits leave, f32, as [`partials`] makes it; by default it is libtorch's.
    pub partials: Option<[Tensor; 2]>,
}

/// Sums and weights of the splits of `num_items` items that see up to `max_visible` positions.
///
/// # Errors
/// There is no room.
pub fn partials(
    num_items: i64,
    heads: i64,
    dim: i64,
    max_visible: usize,
    device: Device,
) -> Result<[Tensor; 2]> {
    let splits = num_splits(max_visible);
    // With one split nothing is written there.
    let parts = if splits == 1 { 0 } else { num_items * heads * splits };
    let empty = |width| Tensor::f_empty([parts, width], (Kind::Float, device));
    Ok([empty(dim)?, empty(2)?])
}

/// Thread blocks that share a token's positions.
fn num_splits(max_visible: usize) -> i64 {
    (max_visible as i64 + SPLIT - 1) / SPLIT
}

/// Whether [`serve`] takes queries of this kind and `head_dim` on this device.
pub fn is_supported(kind: Kind, head_dim: i64, device: Device) -> bool {
    let lanes = head_dim / 8;
    let is_shape = head_dim % 8 == 0 && (1..=32).contains(&lanes) && (lanes as u64).is_power_of_two();
    matches!(device, Device::Cuda(_)) && matches!(kind, Kind::Float | Kind::BFloat16) && is_shape
}

/// Writes the rows `items.rows_n` of `out_thk`; `q_thk` like it, `keys_pgk` and `values_pgk` the cache, all contiguous
/// and of one kind, f32 or bf16, on one GPU, or the cache as codes of [`crate::kv_fp8`]. Scores, softmax and sums run in f32; scores are scaled by
/// `1 / sqrt(head_dim)`.
///
/// # Errors
/// Tensors that do not fit each other, or that [`is_supported`] refuses; no compiler or driver.
pub fn serve(
    out_thk: &Tensor,
    q_thk: &Tensor,
    (keys_pgk, values_pgk): (&Tensor, &Tensor),
    items: &Items,
) -> Result<()> {
    let (_, heads, dim) = q_thk.size3()?;
    let (_, kv_heads, _) = keys_pgk.size3()?;
    check([out_thk, q_thk, keys_pgk, values_pgk], items)?;
    let Device::Cuda(device) = q_thk.device() else { return Err(refused("device", "a GPU", "the CPU")) };
    let num_items = items.rows_n.size1()?;
    if num_items == 0 {
        return Ok(());
    }
    let kinds = (q_thk.kind(), keys_pgk.kind());
    let defines = defines(heads, kv_heads, dim, items.block_size as i64, kinds);
    let program = Program { name: "paged_attention.cu", source: SOURCE, defines: &defines };
    let functions = functions(device, &program, &[NAME, "combine"])?;
    let [attention, combine] = functions.as_slice() else {
        return Err(refused("functions", "2", "another number"));
    };
    let splits = num_splits(items.max_visible);
    let [partial_sums, partial_weights] = match &items.partials {
        Some(partials) => partials.each_ref().map(Tensor::shallow_clone),
        None => partials(num_items, heads, dim, items.max_visible, q_thk.device())?,
    };
    let needed = if splits == 1 { 0 } else { num_items * heads * splits };
    for (what, tensor, width) in
        [("partial sums", &partial_sums, dim), ("partial weights", &partial_weights, 2)]
    {
        if (tensor.numel() as i64) < needed * width || tensor.kind() != Kind::Float || !tensor.is_contiguous()
        {
            return Err(refused(what, format!("f32, at least [{needed}, {width}]"), format!("{tensor:?}")));
        }
    }

    let tiles = heads / kv_heads / group(heads / kv_heads) * kv_heads;
    let stream = current_stream(device)?;
    let pointer = |tensor: &Tensor| tensor.data_ptr() as u64;
    let mut out = pointer(out_thk);
    let (mut q, mut keys, mut values) = (pointer(q_thk), pointer(keys_pgk), pointer(values_pgk));
    let (mut tables, mut table_len) = (pointer(&items.tables_sb), items.tables_sb.size2()?.1 as i32);
    let (mut rows, mut seqs) = (pointer(&items.rows_n), pointer(&items.seqs_n));
    let mut visible = pointer(&items.visible_n);
    let mut scale = std::f32::consts::LOG2_E / (dim as f32).sqrt();
    let (mut sums, mut weights) = (pointer(&partial_sums), pointer(&partial_weights));
    let mut num_splits = splits as i32;
    let mut arguments = [
        argument(&mut out),
        argument(&mut q),
        argument(&mut keys),
        argument(&mut values),
        argument(&mut tables),
        argument(&mut table_len),
        argument(&mut rows),
        argument(&mut seqs),
        argument(&mut visible),
        argument(&mut scale),
        argument(&mut sums),
        argument(&mut weights),
        argument(&mut num_splits),
    ];
    let grid = [num_items as u32, tiles as u32, splits as u32];
    // SAFETY: the arguments are those of the kernel, checked above; libtorch keeps memory that this stream still uses
    // from others when a tensor is dropped.
    unsafe { attention.launch(&Launch { grid, block: THREADS as u32, stream }, &mut arguments)? };
    if splits > 1 {
        let mut arguments = [
            argument(&mut out),
            argument(&mut rows),
            argument(&mut visible),
            argument(&mut sums),
            argument(&mut weights),
            argument(&mut num_splits),
        ];
        let grid = [num_items as u32, heads as u32, 1];
        // SAFETY: as above.
        unsafe { combine.launch(&Launch { grid, block: dim as u32, stream }, &mut arguments)? };
    }
    Ok(())
}

/// The same rows, `[n, h, k]`, by gathering each item's keys and values: the definition, on any device, in f32 or f64.
///
/// # Errors
/// The shapes do not fit.
pub fn reference(
    q_thk: &Tensor,
    (keys_pgk, values_pgk): (&Tensor, &Tensor),
    items: &Items,
) -> Result<Tensor> {
    let (_, heads, dim) = q_thk.size3()?;
    let kv_heads = keys_pgk.size3()?.1;
    let wide = if q_thk.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    let numbers = |tensor: &Tensor| Ok::<_, Error>(Vec::<i64>::try_from(tensor.f_to_kind(Kind::Int64)?)?);
    let (rows, seqs, visible) =
        (numbers(&items.rows_n)?, numbers(&items.seqs_n)?, numbers(&items.visible_n)?);
    let mut outputs = Vec::with_capacity(rows.len());
    for ((row, seq), visible) in rows.into_iter().zip(seqs).zip(visible) {
        let table_b = items.tables_sb.f_select(0, seq)?.f_to_kind(Kind::Int64)?;
        let at = Tensor::f_arange(visible, (Kind::Int64, q_thk.device()))?;
        let size = items.block_size as i64;
        let blocks = table_b.f_index_select(0, &at.f_floor_divide_scalar(size)?)?;
        let slots = blocks.f_mul_scalar(size)?.f_add(&at.f_remainder(size)?)?;
        let heads_first = |cache: &Tensor| {
            let rows_pgk = decode(&cache.f_index_select(0, &slots)?, wide)?;
            Ok::<_, Error>(
                rows_pgk.f_repeat_interleave_self_int(heads / kv_heads, 1, heads)?.f_permute([1, 0, 2])?,
            )
        };
        let (keys_hpk, values_hpk) = (heads_first(keys_pgk)?, heads_first(values_pgk)?);
        let q_h1k = q_thk.f_select(0, row)?.f_to_kind(wide)?.f_unsqueeze(1)?;
        let scores_h1p = q_h1k.f_matmul(&keys_hpk.f_transpose(1, 2)?)?.f_div_scalar((dim as f64).sqrt())?;
        outputs.push(scores_h1p.f_softmax(-1, wide)?.f_matmul(&values_hpk)?.f_squeeze_dim(1)?);
    }
    Ok(Tensor::f_stack(&outputs, 0)?)
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// Query heads of a block: as many of those that share a key-value head as fit, in equal parts.
fn group(per_kv_head: i64) -> i64 {
    (1..=MAX_GROUP).rev().find(|size| per_kv_head % size == 0).unwrap_or(1)
}

fn defines(
    heads: i64,
    kv_heads: i64,
    dim: i64,
    block_size: i64,
    (kind, cache): (Kind, Kind),
) -> [(&'static str, i64); 9] {
    [
        ("HEAD_DIM", dim),
        ("NUM_HEADS", heads),
        ("NUM_KV_HEADS", kv_heads),
        ("GROUP", group(heads / kv_heads)),
        ("KV_BLOCK", block_size),
        ("SPLIT", SPLIT),
        ("BF16", i64::from(kind == Kind::BFloat16)),
        define(cache),
        ("THREADS", THREADS),
    ]
}

fn refused(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Argument { kernel: NAME, what, expected: expected.into(), got: got.into() }
}

/// What the kernel relies on.
fn check([out, q, keys, values]: [&Tensor; 4], items: &Items) -> Result<()> {
    let (kind, device) = (q.kind(), q.device());
    let (_, heads, dim) = q.size3()?;
    if !is_supported(kind, dim, device) {
        return Err(refused("queries", "f32 or bf16 heads of 8, 16, .. 256 on a GPU", format!("{q:?}")));
    }
    let (_, kv_heads, kv_dim) = keys.size3()?;
    if kv_dim != dim || kv_heads == 0 || heads % kv_heads != 0 || values.size() != keys.size() {
        return Err(refused(
            "cache",
            format!("heads of {dim} that divide {heads}"),
            format!("{keys:?}, {values:?}"),
        ));
    }
    if items.block_size == 0 || SPLIT % items.block_size as i64 != 0 {
        return Err(refused(
            "tokens of a block",
            format!("a divisor of {SPLIT}"),
            items.block_size.to_string(),
        ));
    }
    if out.size() != q.size() {
        return Err(refused("output", format!("{q:?}"), format!("{out:?}")));
    }
    for (what, tensor) in [("output", out), ("queries", q), ("keys", keys), ("values", values)] {
        let is_codes =
            tensor.kind() == CODES && matches!(what, "keys" | "values") && keys.kind() == values.kind();
        if (tensor.kind() != kind && !is_codes) || tensor.device() != device || !tensor.is_contiguous() {
            return Err(refused(what, format!("contiguous {kind:?} on {device:?}"), format!("{tensor:?}")));
        }
    }
    let lists = [&items.rows_n, &items.seqs_n, &items.visible_n, &items.tables_sb];
    for (what, tensor) in ["rows", "sequences", "visible positions", "block tables"].into_iter().zip(lists) {
        if tensor.kind() != Kind::Int || tensor.device() != device || !tensor.is_contiguous() {
            return Err(refused(what, format!("contiguous i32 on {device:?}"), format!("{tensor:?}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_heads_are_taken_in_equal_parts_that_fit_the_registers() {
        assert_eq!([1, 2, 3, 7, 8, 12, 16, 11].map(group), [1, 2, 3, 7, 8, 6, 8, 1]);
    }

    #[test]
    fn what_the_kernel_cannot_take_is_refused_before_a_device_is_touched() {
        let q = Tensor::zeros([2, 4, 16], (Kind::Float, Device::Cpu));
        let cache = Tensor::zeros([8, 2, 16], (Kind::Float, Device::Cpu));
        let items = Items {
            rows_n: Tensor::from_slice(&[0i32]),
            seqs_n: Tensor::from_slice(&[0i32]),
            visible_n: Tensor::from_slice(&[3i32]),
            tables_sb: Tensor::from_slice(&[1i32, 0]).view((1, 2)),
            max_visible: 3,
            block_size: 4,
            partials: None,
        };
        let error = serve(&q.zeros_like(), &q, (&cache, &cache), &items).unwrap_err();
        assert!(error.to_string().starts_with("paged_attention: queries: expected"), "{error}");
        assert!(
            !is_supported(Kind::BFloat16, 80, Device::Cuda(0))
                && is_supported(Kind::Float, 64, Device::Cuda(0))
        );
    }

    #[test]
    fn kernel_compiles_for_every_supported_gpu_and_shape() {
        for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128), (28, 4, 128), (16, 16, 256), (4, 2, 8)] {
            let kinds = [Kind::Float, Kind::BFloat16].map(|kind| [(kind, kind), (kind, CODES)]);
            for kinds in kinds.concat() {
                let defines = defines(heads, kv_heads, dim, 16, kinds);
                let program = Program { name: "paged_attention.cu", source: SOURCE, defines: &defines };
                for arch in ["sm_80", "sm_90", "sm_100"] {
                    match slime_cuda::compile(&program, arch) {
                        Ok(cubin) => assert!(cubin.starts_with(b"\x7fELF")),
                        Err(slime_cuda::Error::NoCompiler) => {
                            eprintln!("skipped: no libnvrtc.so");
                            return;
                        }
                        Err(error) => panic!("{heads} heads of {dim}, {kinds:?}, {arch}: {error}"),
                    }
                }
            }
        }
    }
}
