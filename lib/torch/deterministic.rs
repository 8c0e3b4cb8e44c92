//! The same bits in every run: libtorch's operations without those that add numbers in an order of chance.
#![expect(unsafe_code, reason = "calls into the shim")]

use crate::error::Result;
use crate::ffi;

/// From now on this process computes the same bits from the same numbers on the same machine: libtorch takes its deterministic
/// algorithms and refuses an operation that has none (`torch.use_deterministic_algorithms`), cuBLAS gets the workspace that it
/// needs for that (`CUBLAS_WORKSPACE_CONFIG=:4096:8`), attention of even chunks goes through `FlashAttention` instead of cuDNN, and
/// NCCL adds up in rings (`NCCL_ALGO=Ring`; both variables only where they are not set). Kernels of `slime_kernel` that train add
/// nothing in an order of chance anyway. Called before CUDA is opened.
///
/// # Errors
/// libtorch refuses.
pub fn require() -> Result<()> {
    // SAFETY: writes an error, and variables of the environment before other threads read them.
    ffi::checked("deterministic algorithms", |error| unsafe { ffi::slime_require_deterministic(error) })
}

/// Whether [`require`] was called.
pub fn is_required() -> bool {
    // SAFETY: reads a flag.
    unsafe { ffi::slime_is_deterministic() != 0 }
}
