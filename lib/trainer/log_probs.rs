//! A forward pass over a micro-batch: hidden states of its rows, log-probs and entropy of their targets.

use slime_model::{Context, Model, Shaping};
use tch::Tensor;

use crate::Result;
use crate::packing::MicroBatch;

/// The hidden states `[r, d]` after the final norm that predict the rows of `batch`; under autograd unless the caller
/// switched it off.
///
/// # Errors
/// A token outside the vocabulary, or no room.
pub fn hidden_states(model: &Model, batch: &MicroBatch) -> Result<Tensor> {
    let (kind, device) = (model.params().kind(), model.params().device());
    let mut context = Context::packed(&batch.segments, kind, device)?;
    let tensor = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
    let hidden_td = model.forward(&mut context, &tensor(&batch.tokens)?)?;
    Ok(hidden_td.f_index_select(0, &tensor(&batch.rows)?)?)
}

/// `(log_probs_r, entropy_r)` of the targets of `batch`, in f32 (f64 for f64 models), at the sampling `temperature`.
///
/// # Errors
/// As [`hidden_states`].
pub fn log_probs(model: &Model, batch: &MicroBatch, temperature: f64) -> Result<(Tensor, Tensor)> {
    let targets_r = Tensor::f_from_slice(&batch.targets)?.f_to_device(model.params().device())?;
    let hidden_rd = hidden_states(model, batch)?;
    Ok(model.head_log_probs(&hidden_rd, &targets_r, &Shaping::at(temperature))?)
}
