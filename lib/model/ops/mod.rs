//! The operations layers are composed of, one file each.
//!
//! `reference` is the definition on any device, under autograd; `serve` the same in plain memory without gradient, for f32
//! on a CPU; `train` a custom function. An op takes `serve` wherever its inputs allow it.

pub mod adapter;
pub mod add_norm;
pub mod attend;
pub mod attention;
pub mod dispatch;
pub mod embed;
pub mod experts;
pub mod fp8;
pub mod fp8_linear;
mod grouped_product;
pub mod head_log_probs;
pub mod linear;
pub(crate) mod packed_attention;
pub mod paged_attention;
pub mod qk_norm_rope;
pub(crate) mod ring_attention;
pub mod route;
pub mod sequence;
pub mod silu_mul;

use std::cell::Cell;

use rayon::prelude::*;
use slime_torch::simd::{Kernel, dispatch};
use tch::{Device, Kind, Tensor};

/// Elements below which a second thread costs more than it saves.
const PARALLEL_ELEMENTS: usize = 1 << 15;

thread_local! {
    static IS_AS_TRAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with the ops that training takes, on this thread: a forward pass in it gives the bits of one under autograd,
/// where `serve` may round otherwise.
pub fn as_trained<T>(f: impl FnOnce() -> T) -> T {
    let before = IS_AS_TRAINED.replace(true);
    let result = f();
    IS_AS_TRAINED.set(before);
    result
}

/// Whether `serve` may take these inputs of an op.
fn can_serve<const N: usize>(inputs: [&Tensor; N]) -> bool {
    !IS_AS_TRAINED.get()
        && inputs.iter().all(|x| x.device() == Device::Cpu && x.kind() == Kind::Float && !x.requires_grad())
}

/// Whether kernels of a GPU may take these inputs of an op: nothing of them is trained.
fn can_serve_on_gpu<const N: usize>(inputs: [&Tensor; N]) -> bool {
    !IS_AS_TRAINED.get() && inputs.iter().all(|x| x.device().is_cuda() && !x.requires_grad())
}

/// Runs the kernel that `kernel` makes of the number of a row and the row, for every row of `out`; on all cores where
/// there is enough to do.
fn each_row<'a, K: Kernel>(
    out: &'a mut [f32],
    width: usize,
    kernel: impl Fn(usize, &'a mut [f32]) -> K + Sync,
) {
    if width == 0 {
        return;
    }
    if out.len() < PARALLEL_ELEMENTS {
        out.chunks_exact_mut(width).enumerate().for_each(|(at, row)| dispatch(kernel(at, row)));
    } else {
        let rows = out.par_chunks_exact_mut(width).with_min_len(PARALLEL_ELEMENTS / 4 / width + 1);
        rows.enumerate().for_each(|(at, row)| dispatch(kernel(at, row)));
    }
}

/// The sum of products, in sixteen lanes so it vectorises.
#[inline(always)]
#[expect(clippy::inline_always, reason = "compiled for every vector unit")]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + rest
}
