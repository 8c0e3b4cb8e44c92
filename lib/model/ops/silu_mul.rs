//! The gate of the MLP. Suffixes: t tokens, m intermediate size.
#![expect(clippy::inline_always, reason = "compiled for every vector unit")]

use slime_torch::simd::{Kernel, exp};
use slime_torch::{CustomFunction, Forward, custom_function, floats_mut, rows_of};
use tch::Tensor;

use super::{can_serve, can_serve_on_gpu, each_row};
use crate::{Error, Result, Workspace};

/// [`serve`] or the kernel of a GPU where the input allows it, else [`reference`].
///
/// # Errors
/// The last dimension is odd.
pub fn silu_mul(workspace: &Workspace, gate_up: &Tensor) -> Result<Tensor> {
    if can_serve([gate_up]) {
        return serve(gate_up);
    }
    let (t, width) = gate_up.size2()?;
    let (kind, device) = (gate_up.kind(), gate_up.device());
    if can_serve_on_gpu([gate_up])
        && gate_up.is_contiguous()
        && slime_kernel::silu_mul::is_supported(kind, width / 2, device)
    {
        let out_tm = workspace.empty(&[t, width / 2], (kind, device))?;
        slime_kernel::silu_mul::serve(gate_up, &out_tm)?;
        return Ok(out_tm);
    }
    if slime_kernel::silu_mul::is_supported(kind, width / 2, device) {
        return train(gate_up);
    }
    reference(gate_up)
}

/// [`reference`] in one pass over memory on a GPU, with a gradient of its own, for which the input alone is kept.
///
/// # Errors
/// The last dimension is odd.
pub fn train(gate_up: &Tensor) -> Result<Tensor> {
    let outputs = custom_function(&[gate_up], Train)?;
    outputs.into_iter().next().ok_or(Error::Context { what: "outputs of the gate", expected: 1, got: 0 })
}

struct Train;

impl Train {
    fn outputs(inputs: &[Tensor]) -> Result<Forward> {
        let [gate_up] = inputs else {
            return Err(Error::Context { what: "inputs of the gate", expected: 1, got: inputs.len() });
        };
        let gate_up = gate_up.f_contiguous()?;
        let (t, width) = gate_up.size2()?;
        let out_tm = Tensor::f_empty([t, width / 2], (gate_up.kind(), gate_up.device()))?;
        slime_kernel::silu_mul::serve(&gate_up, &out_tm)?;
        Ok(Forward { outputs: vec![out_tm], saved: vec![gate_up] })
    }
}

impl CustomFunction for Train {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        Self::outputs(inputs).map_err(|error| error.to_string())
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let ([gate_up], [Some(grad_tm)]) = (saved, grads) else { return Ok(vec![None]) };
        let backward = |grad_tm: &Tensor| -> Result<Tensor> {
            Ok(slime_kernel::silu_mul::backward(gate_up, &grad_tm.f_contiguous()?)?)
        };
        Ok(vec![Some(backward(grad_tm).map_err(|error| error.to_string())?)])
    }
}

/// `silu(gate) * up`, `[t, m]`, of `gate_up` `[t, 2 m]` (gate first).
///
/// # Errors
/// The last dimension is odd.
pub fn reference(gate_up: &Tensor) -> Result<Tensor> {
    let (t, width) = gate_up.size2()?;
    let halves = gate_up.f_view((t, 2, width / 2))?;
    Ok(halves.f_select(1, 0)?.f_silu()?.f_mul(&halves.f_select(1, 1)?)?)
}

/// The same in one pass.
///
/// # Errors
/// The input is no matrix.
pub fn serve(gate_up: &Tensor) -> Result<Tensor> {
    let (t, width) = gate_up.size2()?;
    let mut out_tm = Tensor::f_empty([t, width / 2], (gate_up.kind(), gate_up.device()))?;
    let (rows, width) = (rows_of(gate_up)?, width as usize / 2);
    each_row(floats_mut(&mut out_tm)?, width, |at, out| {
        let (gate, up) = rows.row(at).split_at(width);
        Halves { gate, up, out }
    });
    Ok(out_tm)
}

/// One row.
struct Halves<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Halves<'_> {
    #[inline(always)]
    fn run(self) {
        for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *out = gate / (1.0 + exp((-gate).min(88.0))) * up;
        }
    }
}
