//! Causal attention of chunks of several sequences in one call, on a GPU.
#![expect(unsafe_code, reason = "calls into the shim")]

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, RawTensor, Sink};

/// Chunk i has the rows `cu_q[i]..cu_q[i + 1]` of the queries, which are the last of the positions `cu_k[i]..cu_k[i + 1]`.
#[derive(Debug)]
pub struct Chunks {
    /// First rows and the end, i32 on the GPU.
    pub cu_q: Tensor,
    /// First positions and the end, i32 on the GPU.
    pub cu_k: Tensor,
    /// Rows of the longest chunk.
    pub max_q: usize,
    /// Positions of the longest sequence.
    pub max_k: usize,
}

/// Attention `[t, heads, k]` of `q_thk` over `k_sgk` and `v_sgk`, all bf16 on one GPU, scaled by `1 / sqrt(k)`; libtorch's own
/// `FlashAttention`, without gradient.
///
/// # Errors
/// libtorch refuses the shapes, or has no CUDA.
pub fn varlen_attention(q_thk: &Tensor, k_sgk: &Tensor, v_sgk: &Tensor, chunks: &Chunks) -> Result<Tensor> {
    let raw = |tensor: &Tensor| tensor.as_ptr().cast::<RawTensor>();
    let mut sink = Sink::new();
    let (max_q, max_k) = (chunks.max_q as i64, chunks.max_k as i64);
    let [q, k, v, cu_q, cu_k] = [q_thk, k_sgk, v_sgk, &chunks.cu_q, &chunks.cu_k].map(raw);
    ffi::checked("attention of chunks", |error| {
        // SAFETY: all tensors outlive the call, and the sink is alive.
        unsafe { ffi::slime_varlen_attention(q, k, v, cu_q, cu_k, max_q, max_k, sink.as_mut_ptr(), error) }
    })?;
    let missing = || Error::Torch { operation: "attention of chunks", message: "no result".to_owned() };
    sink.into_tensors().pop().ok_or_else(missing)
}
