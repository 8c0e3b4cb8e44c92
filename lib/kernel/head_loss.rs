//! The running softmax of rows of logits and the gradient of a loss on it, chunk by chunk. Suffixes: r rows, n columns of
//! a chunk (ids in a row from `first` on), the number of values for a row.
//!
//! The online softmax is that of Milakov and Gimelshein (arXiv 1805.02867), with the sum that the entropy needs beside it.
#![expect(unsafe_code, reason = "launches a kernel")]

use std::ffi::c_void;

use slime_cuda::{Launch, Program};
use slime_torch::cuda::current_stream;
use tch::{Device, Kind, Tensor};

use crate::registry::functions;
use crate::{Error, Result};

/// Threads of a block.
const THREADS: i64 = 256;
const NAME: &str = "head_loss";
/// Below any logit, and its sums with logits stay finite.
const LOWEST: f64 = -1e30;

/// Values of [`fresh_state`] for a row: largest logit, `sum e^(x - largest)`, `sum e^(x - largest) (x - largest)`, logit of
/// the target; all of logits over the temperature.
pub const STATE: i64 = 4;
/// Values of a row that [`slope`] reads: log-sum-exp, entropy, the loss's slope in the log-prob where its softmax is over
/// all ids (else 0), the same at the target, and the slope in the entropy.
pub const ROW: i64 = 5;

/// The ids of a chunk of logits, and what they are divided by.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// The id of the first.
    pub first: i64,
    /// Above 0.
    pub temperature: f64,
}

/// The state `[r, 4]` before any logit, f32 or f64.
///
/// # Errors
/// libtorch has no room.
pub fn fresh_state(num_rows: i64, options: (Kind, Device)) -> Result<Tensor> {
    let state_r4 = Tensor::f_zeros([num_rows, STATE], options)?;
    let _ = state_r4.f_select(1, 0)?.f_fill_(LOWEST)?;
    Ok(state_r4)
}

/// Whether the kernels take chunks of this kind on this device.
pub fn is_supported(kind: Kind, device: Device) -> bool {
    kind == Kind::Float && matches!(device, Device::Cuda(_))
}

/// Takes a chunk of logits `[r, n]` (f32, contiguous, on a GPU) into `state_r4`; `targets_r` i64, any of them elsewhere.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn absorb(state_r4: &Tensor, logits_rn: &Tensor, targets_r: &Tensor, columns: Columns) -> Result<()> {
    check(logits_rn, targets_r, ("state", state_r4, STATE))?;
    launch("absorb", false, [logits_rn, targets_r, state_r4], columns)
}

/// What [`absorb`] does, on any device, in f32 or f64: the definition.
///
/// # Errors
/// The shapes do not fit.
pub fn absorb_reference(
    state_r4: &Tensor,
    logits_rn: &Tensor,
    targets_r: &Tensor,
    columns: Columns,
) -> Result<()> {
    let scaled_rn = logits_rn.f_div_scalar(columns.temperature)?;
    let part = |at: i64| state_r4.f_select(1, at);
    let (largest, sum, weighted, picked) = (part(0)?, part(1)?, part(2)?, part(3)?);
    let top = scaled_rn.f_amax(-1, false)?.f_maximum(&largest)?;
    let shift = largest.f_sub(&top)?;
    let keep = shift.f_exp()?;
    let shifted_rn = scaled_rn.f_sub(&top.f_unsqueeze(1)?)?;
    let exp_rn = shifted_rn.f_exp()?;
    let total = |x: &Tensor| x.f_sum_dim_intlist(-1, false, None);
    let new_weighted =
        sum.f_mul(&shift)?.f_add(&weighted)?.f_mul(&keep)?.f_add(&total(&exp_rn.f_mul(&shifted_rn)?)?)?;
    let new_sum = sum.f_mul(&keep)?.f_add(&total(&exp_rn)?)?;
    let (at_r1, is_here_r) = places(logits_rn, targets_r, columns)?;
    let found = scaled_rn.f_gather(1, &at_r1, false)?.f_squeeze_dim(1)?.f_where_self(&is_here_r, &picked)?;
    for (at, value) in [top, new_sum, new_weighted, found].iter().enumerate() {
        part(at as i64)?.f_copy_(value)?;
    }
    Ok(())
}

/// Replaces a chunk of logits by the gradient of a loss whose slopes are in `rows_r5`, and returns the gradient `[r, n]`:
/// the same memory for `kind` f32, its first halves of rows for bf16. With scale = 1 / temperature it is
/// `scale ([target] picked - p (dense + slope (log p + entropy)))`.
///
/// # Errors
/// As [`absorb`]; another kind.
pub fn slope(
    logits_rn: &Tensor,
    targets_r: &Tensor,
    rows_r5: &Tensor,
    columns: Columns,
    kind: Kind,
) -> Result<Tensor> {
    check(logits_rn, targets_r, ("values of rows", rows_r5, ROW))?;
    if !matches!(kind, Kind::Float | Kind::BFloat16) {
        return Err(refused("kind of the gradient", "Float or BFloat16", format!("{kind:?}")));
    }
    let is_bf16 = kind == Kind::BFloat16;
    launch("slope", is_bf16, [logits_rn, targets_r, rows_r5], columns)?;
    if !is_bf16 {
        return Ok(logits_rn.shallow_clone());
    }
    let num_columns = logits_rn.size2()?.1;
    Ok(logits_rn.f_view_dtype(kind)?.f_narrow(1, 0, num_columns)?)
}

/// What [`slope`] returns, in the kind of the logits, on any device: the definition.
///
/// # Errors
/// The shapes do not fit.
pub fn slope_reference(
    logits_rn: &Tensor,
    targets_r: &Tensor,
    rows_r5: &Tensor,
    columns: Columns,
) -> Result<Tensor> {
    let of_row = |at: i64| rows_r5.f_narrow(1, at, 1);
    let log_prob_rn = logits_rn.f_div_scalar(columns.temperature)?.f_sub(&of_row(0)?)?;
    let factor_rn = log_prob_rn.f_add(&of_row(1)?)?.f_mul(&of_row(4)?)?.f_add(&of_row(2)?)?;
    let mut grad_rn = log_prob_rn.f_exp()?.f_mul(&factor_rn)?.f_neg()?;
    let (at_r1, is_here_r) = places(logits_rn, targets_r, columns)?;
    let picked_r1 = of_row(3)?.f_mul(&is_here_r.f_unsqueeze(1)?)?;
    let grad_rn = grad_rn.f_scatter_add_(1, &at_r1, &picked_r1)?;
    Ok(grad_rn.f_div_scalar(columns.temperature)?)
}

/// Columns `[r, 1]` of the targets (any where a target is elsewhere), and which targets `[r]` are among the columns.
fn places(logits_rn: &Tensor, targets_r: &Tensor, columns: Columns) -> Result<(Tensor, Tensor)> {
    let num_columns = logits_rn.size2()?.1;
    let at_r = targets_r.f_sub_scalar(columns.first)?;
    let is_here_r = at_r.f_ge(0)?.f_logical_and(&at_r.f_lt(num_columns)?)?;
    Ok((at_r.f_clamp(0, num_columns - 1)?.f_unsqueeze(1)?, is_here_r))
}

fn launch(
    name: &'static str,
    is_bf16: bool,
    [logits_rn, targets_r, rows]: [&Tensor; 3],
    columns: Columns,
) -> Result<()> {
    let Device::Cuda(device) = logits_rn.device() else { return Err(refused("device", "a GPU", "the CPU")) };
    let (num_rows, num_columns) = logits_rn.size2()?;
    if num_rows == 0 || num_columns == 0 {
        return Ok(());
    }
    let defines = defines(is_bf16);
    let program = Program { name: "head_loss.cu", source: include_str!("head_loss.cu"), defines: &defines };
    let loaded = functions(device, &program, &["absorb", "slope"])?;
    let function = loaded.get(usize::from(name == "slope"));
    let Some(function) = function else { return Err(refused("functions", "2", "another number")) };
    let pointer = |tensor: &Tensor| tensor.data_ptr() as u64;
    let (mut logits, mut targets, mut of_rows) = (pointer(logits_rn), pointer(targets_r), pointer(rows));
    let mut width = num_columns as i32;
    let mut first = columns.first;
    let mut scale = (1.0 / columns.temperature) as f32;
    let mut arguments = [
        argument(&mut logits),
        argument(&mut targets),
        argument(&mut of_rows),
        argument(&mut width),
        argument(&mut first),
        argument(&mut scale),
    ];
    let grid = [num_rows as u32, 1, 1];
    let launch = Launch { grid, block: THREADS as u32, stream: current_stream(device)? };
    // SAFETY: the arguments are those of both kernels, checked by the callers; libtorch keeps memory that this stream
    // still uses from others when a tensor is dropped.
    unsafe { function.launch(&launch, &mut arguments)? };
    Ok(())
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

fn defines(is_bf16: bool) -> [(&'static str, i64); 2] {
    [("THREADS", THREADS), ("BF16", i64::from(is_bf16))]
}

fn refused(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Argument { kernel: NAME, what, expected: expected.into(), got: got.into() }
}

/// What the kernels rely on.
fn check(
    logits_rn: &Tensor,
    targets_r: &Tensor,
    (what, rows, width): (&'static str, &Tensor, i64),
) -> Result<()> {
    let (num_rows, num_columns) = logits_rn.size2()?;
    let device = logits_rn.device();
    if !is_supported(logits_rn.kind(), device)
        || !logits_rn.is_contiguous()
        || i32::try_from(num_columns).is_err()
    {
        return Err(refused("logits", "contiguous f32 on a GPU", format!("{logits_rn:?}")));
    }
    let is_row = |tensor: &Tensor, kind: Kind, size: &[i64]| {
        tensor.kind() == kind && tensor.size() == size && tensor.device() == device && tensor.is_contiguous()
    };
    if !is_row(targets_r, Kind::Int64, &[num_rows]) {
        let expected = format!("contiguous i64 [{num_rows}] on {device:?}");
        return Err(refused("targets", expected, format!("{targets_r:?}")));
    }
    if !is_row(rows, Kind::Float, &[num_rows, width]) {
        let expected = format!("contiguous f32 [{num_rows}, {width}] on {device:?}");
        return Err(refused(what, expected, format!("{rows:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernels_cannot_take_is_refused_before_a_device_is_touched() {
        let logits = Tensor::zeros([2, 5], (Kind::Float, Device::Cpu));
        let state = fresh_state(2, (Kind::Float, Device::Cpu)).unwrap();
        let columns = Columns { first: 0, temperature: 1.0 };
        let error = absorb(&state, &logits, &Tensor::from_slice(&[1i64, 2]), columns).unwrap_err();
        assert!(error.to_string().starts_with("head_loss: logits: expected"), "{error}");
    }

    #[test]
    fn kernels_compile_for_every_supported_gpu() {
        for is_bf16 in [false, true] {
            let defines = defines(is_bf16);
            let source = include_str!("head_loss.cu");
            let program = Program { name: "head_loss.cu", source, defines: &defines };
            for arch in ["sm_80", "sm_90", "sm_100"] {
                match slime_cuda::compile(&program, arch) {
                    Ok(cubin) => assert!(cubin.starts_with(b"\x7fELF")),
                    Err(slime_cuda::Error::NoCompiler) => {
                        eprintln!("skipped: no libnvrtc.so");
                        return;
                    }
                    Err(error) => panic!("bf16: {is_bf16}, {arch}: {error}"),
                }
            }
        }
    }
}
