//! Decode attention over the paged cache on a GPU: our kernel, libtorch's attention over keys and values that lie side by
//! side already (which a paged cache does not give it), and a copy of as many bytes, by turns.
//!
//! `cargo bench --workspace --bench paged_attention`; `tests/gpu/bench.sh` runs it with the libraries it needs.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::time::Instant;

use slime_kernel::paged_attention::{Items, serve};
use slime_torch::cuda;
use tch::{Cuda, Device, Kind, Tensor};

const BLOCK_SIZE: i64 = 16;
const REPEATS: usize = 5;
/// Calls in a row, so that launching them hides behind the work.
const CALLS: usize = 50;

struct Shape {
    name: &'static str,
    heads: i64,
    kv_heads: i64,
    dim: i64,
    num_seqs: i64,
    len: i64,
}

/// The least seconds of a call over all repetitions.
fn least(mut call: impl FnMut()) -> f64 {
    call();
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        Cuda::synchronize(0);
        let started = Instant::now();
        (0..CALLS).for_each(|_| call());
        Cuda::synchronize(0);
        best = best.min(started.elapsed().as_secs_f64() / CALLS as f64);
    }
    best
}

fn measure(shape: &Shape) {
    let &Shape { name, heads, kv_heads, dim, num_seqs, len } = shape;
    let on = (Kind::BFloat16, Device::Cuda(0));
    let blocks = len / BLOCK_SIZE;
    let q = Tensor::randn([num_seqs, heads, dim], on);
    let cache = || Tensor::randn([num_seqs * len, kv_heads, dim], on);
    let (keys, values) = (cache(), cache());
    let int = |tensor: Tensor| tensor.to_kind(Kind::Int);
    let on_int = (Kind::Int64, Device::Cuda(0));
    let items = Items {
        rows_n: int(Tensor::arange(num_seqs, on_int)),
        seqs_n: int(Tensor::arange(num_seqs, on_int)),
        visible_n: Tensor::full([num_seqs], len, (Kind::Int, Device::Cuda(0))),
        // Blocks in random order, as a cache that has run for a while has them.
        tables_sb: int(Tensor::randperm(num_seqs * blocks, on_int)).view((num_seqs, blocks)),
        max_visible: len as usize,
        block_size: BLOCK_SIZE as usize,
        partials: None,
    };
    let out = Tensor::empty([num_seqs, heads, dim], on);
    let bytes = (2 * num_seqs * len * kv_heads * dim * 2) as f64;
    let ours = least(|| serve(&out, &q, (&keys, &values), &items).unwrap());

    let sides = |cache: &Tensor| cache.view((num_seqs, len, kv_heads, dim)).permute([0, 2, 1, 3]);
    let (side_keys, side_values) = (sides(&keys), sides(&values));
    let query = q.view((num_seqs, heads, 1, dim));
    let rival = least(|| {
        let _ = Tensor::scaled_dot_product_attention(
            &query,
            &side_keys,
            &side_values,
            None::<Tensor>,
            0.0,
            false,
            None,
            true,
        );
    });
    // A copy reads and writes, so half of the bytes are copied.
    let mut target = keys.empty_like();
    let copy = least(|| {
        target.copy_(&keys);
    });
    println!(
        "{name:<28} {:>6.0} us  {:>5.0} GB/s  {:>5.2} of a copy  {:>5.2} x libtorch's attention",
        ours * 1e6,
        bytes / ours / 1e9,
        copy / ours,
        rival / ours,
    );
}

fn main() {
    if let Err(error) = cuda::open() {
        println!("skipped: {error}");
        return;
    }
    let shape =
        |name, (heads, kv_heads, dim), num_seqs, len| Shape { name, heads, kv_heads, dim, num_seqs, len };
    for shape in [
        shape("SmolLM2-135M, 256 x 1024", (9, 3, 64), 256, 1024),
        shape("Qwen3-0.6B, 256 x 1024", (16, 8, 128), 256, 1024),
        shape("Qwen3-8B, 256 x 1024", (32, 8, 128), 256, 1024),
        shape("Qwen3-8B, 64 x 8192", (32, 8, 128), 64, 8192),
        shape("Qwen3-8B, 8 x 32768", (32, 8, 128), 8, 32768),
        shape("Qwen2.5-7B, 256 x 1024", (28, 4, 128), 256, 1024),
    ] {
        measure(&shape);
    }
}
