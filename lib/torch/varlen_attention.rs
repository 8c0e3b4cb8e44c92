//! Causal attention of chunks of several sequences in one call, on a GPU.
#![expect(unsafe_code, reason = "calls into the shim")]

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, Pointers, RawTensor, Sink};

const NAME: &str = "attention of chunks";

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
    /// The rows of every chunk, where all have as many, and as many positions: cuDNN takes these.
    pub even_len: Option<usize>,
}

impl Chunks {
    fn lens(&self) -> [i64; 3] {
        [self.max_q, self.max_k, self.even_len.unwrap_or(0)].map(|len| len as i64)
    }
}

/// Attention `[t, heads, k]` of `q_thk` over `k_sgk` and `v_sgk`, all bf16 on one GPU, scaled by `1 / sqrt(k)`; libtorch's own
/// `FlashAttention`, or cuDNN's, without gradient.
///
/// # Errors
/// libtorch refuses the shapes, or has no CUDA.
pub fn varlen_attention(q_thk: &Tensor, k_sgk: &Tensor, v_sgk: &Tensor, chunks: &Chunks) -> Result<Tensor> {
    let [out_thk, ..] = varlen_attention_kept(q_thk, k_sgk, v_sgk, chunks)?;
    Ok(out_thk)
}

/// The same, with what [`varlen_attention_backward`] needs behind it: the log-sum-exp of every row of scores, and two states of
/// a generator that nothing is drawn from.
///
/// # Errors
/// As [`varlen_attention`].
pub fn varlen_attention_kept(
    q_thk: &Tensor,
    k_sgk: &Tensor,
    v_sgk: &Tensor,
    chunks: &Chunks,
) -> Result<[Tensor; 4]> {
    let mut sink = Sink::new();
    let [max_q, max_k, even] = chunks.lens();
    let [q, k, v, cu_q, cu_k] = [q_thk, k_sgk, v_sgk, &chunks.cu_q, &chunks.cu_k].map(raw);
    ffi::checked(NAME, |error| {
        // SAFETY: all tensors outlive the call, and the sink is alive.
        unsafe {
            ffi::slime_varlen_attention(q, k, v, cu_q, cu_k, max_q, max_k, even, sink.as_mut_ptr(), error)
        }
    })?;
    sink.into_tensors().try_into().map_err(|_| missing())
}

/// Gradients of queries, keys and values from that of the result, `grad_thk`; the others as the forward pass had and gave them.
///
/// # Errors
/// As [`varlen_attention`].
pub fn varlen_attention_backward(
    grad_thk: &Tensor,
    (q_thk, k_sgk, v_sgk): (&Tensor, &Tensor, &Tensor),
    kept: &[Tensor; 4],
    chunks: &Chunks,
) -> Result<[Tensor; 3]> {
    let mut sink = Sink::new();
    let [max_q, max_k, even] = chunks.lens();
    let kept = Pointers::new(kept);
    let [grad, q, k, v] = [grad_thk, q_thk, k_sgk, v_sgk].map(raw);
    let [cu_q, cu_k] = [&chunks.cu_q, &chunks.cu_k].map(raw);
    ffi::checked(NAME, |error| {
        let (kept, sink) = (kept.as_ptr(), sink.as_mut_ptr());
        // SAFETY: all tensors outlive the call, four are kept, and the sink is alive.
        unsafe {
            ffi::slime_varlen_attention_backward(
                grad, q, k, v, kept, cu_q, cu_k, max_q, max_k, even, sink, error,
            )
        }
    })?;
    sink.into_tensors().try_into().map_err(|_| missing())
}

fn raw(tensor: &Tensor) -> *const RawTensor {
    tensor.as_ptr().cast()
}

fn missing() -> Error {
    Error::Torch { operation: NAME, message: "no result".to_owned() }
}
