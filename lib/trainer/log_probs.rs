//! Log-probs and entropy of the trained tokens of a micro-batch under a model.

use slime_model::{Context, Model, Shaping};
use tch::Tensor;

use crate::Result;
use crate::packing::MicroBatch;

/// `(log_probs_r, entropy_r)` of the rows of `batch`, in f32, at the sampling `temperature`; under autograd unless the
/// caller switched it off.
///
/// # Errors
/// A token outside the vocabulary, or no room.
pub fn log_probs(model: &Model, batch: &MicroBatch, temperature: f64) -> Result<(Tensor, Tensor)> {
    let (kind, device) = (model.params().kind(), model.params().device());
    let mut context = Context::packed(&batch.segments, kind, device)?;
    let tensor = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
    let hidden_td = model.forward(&mut context, &tensor(&batch.tokens)?)?;
    let hidden_rd = hidden_td.f_index_select(0, &tensor(&batch.rows)?)?;
    Ok(model.head_log_probs(&hidden_rd, &tensor(&batch.targets)?, &Shaping::at(temperature))?)
}
