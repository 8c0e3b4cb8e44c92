//! Collectives of tensors in GPU memory, on the stream of this thread's operations.
#![expect(unsafe_code, reason = "hands addresses of tensors to NCCL")]

use slime_comm::{Dtype, Nccl, Op};
use tch::{Device, Kind, Tensor};

use crate::cuda::current_stream;
use crate::error::{Error, Result};

/// Every rank's `tensor` becomes the reduction of all ranks', in place; all have the same shape and dtype.
///
/// # Errors
/// A tensor that is not contiguous or not on a GPU, a dtype without a reduction, or NCCL refuses.
pub fn all_reduce(tensor: &mut Tensor, nccl: &Nccl, op: Op) -> Result<()> {
    let (dtype, stream) = check("all_reduce", tensor)?;
    // SAFETY: checked above; the exclusive borrow keeps other handles away, the stream orders what comes later.
    unsafe { nccl.all_reduce(tensor.data_ptr(), tensor.numel(), dtype, op, stream) }.map_err(Error::from)
}

/// Every rank's `tensor` becomes `root`'s.
///
/// # Errors
/// As [`all_reduce`], and a rank that is not there.
pub fn broadcast(tensor: &mut Tensor, nccl: &Nccl, root: usize) -> Result<()> {
    let (dtype, stream) = check("broadcast", tensor)?;
    // SAFETY: as above.
    unsafe { nccl.broadcast(tensor.data_ptr(), tensor.numel(), dtype, root, stream) }.map_err(Error::from)
}

/// All ranks' tensors, `[ranks, ..]` of the shape of one, in rank order.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather(tensor: &Tensor, nccl: &Nccl) -> Result<Tensor> {
    let (dtype, stream) = check("all_gather", tensor)?;
    let mut size = vec![nccl.size() as i64];
    size.extend(tensor.size());
    let gathered = Tensor::f_empty(size.as_slice(), (tensor.kind(), tensor.device()))
        .map_err(|error| refused(&error))?;
    // SAFETY: checked above, and the output holds one part for each rank.
    let done =
        unsafe { nccl.all_gather(tensor.data_ptr(), gathered.data_ptr(), tensor.numel(), dtype, stream) };
    done.map_err(Error::from).map(|()| gathered)
}

/// This rank's row of the reduction of all ranks' `tensor`, `[ranks, ..]`.
///
/// # Errors
/// As [`all_reduce`], and another number of rows than ranks.
pub fn reduce_scatter(tensor: &Tensor, nccl: &Nccl, op: Op) -> Result<Tensor> {
    let (dtype, stream) = check("reduce_scatter", tensor)?;
    let size = tensor.size();
    let Some((&rows, rest)) = size.split_first().filter(|(rows, _)| **rows == nccl.size() as i64) else {
        let message = format!("expected {} rows, got {tensor:?}", nccl.size());
        return Err(Error::Torch { operation: "reduce_scatter", message });
    };
    let part = Tensor::f_empty(rest, (tensor.kind(), tensor.device())).map_err(|error| refused(&error))?;
    let count = tensor.numel() / rows.max(1) as usize;
    // SAFETY: checked above, and the output holds one part.
    let done = unsafe { nccl.reduce_scatter(tensor.data_ptr(), part.data_ptr(), count, dtype, op, stream) };
    done.map_err(Error::from).map(|()| part)
}

/// The dtype of a contiguous tensor on a GPU, and the stream of that GPU.
fn check(operation: &'static str, tensor: &Tensor) -> Result<(Dtype, usize)> {
    let dtype = match tensor.kind() {
        Kind::Float => Some(Dtype::F32),
        Kind::Double => Some(Dtype::F64),
        Kind::BFloat16 => Some(Dtype::Bf16),
        Kind::Uint8 => Some(Dtype::U8),
        _ => None,
    };
    match (tensor.device(), dtype) {
        (Device::Cuda(device), Some(dtype)) if tensor.is_contiguous() => Ok((dtype, current_stream(device)?)),
        _ => {
            let message = format!("expected contiguous floats or bytes on a GPU, got {tensor:?}");
            Err(Error::Torch { operation, message })
        }
    }
}

fn refused(error: &tch::TchError) -> Error {
    Error::Torch { operation: "allocation", message: error.to_string() }
}
