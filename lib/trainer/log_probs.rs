//! A forward pass over a micro-batch: hidden states of its rows, log-probs and entropy of their targets.

use slime_model::{Context, Model, Parallel, Routes, Shaping};
use tch::{Device, Tensor};

use crate::Result;
use crate::micro_batch::MicroBatch;
use crate::prepared::Prepared;

/// The hidden states `[r, d]` after the final norm that predict the rows of `batch`, by a model that this rank has all layers of; under autograd unless the
/// caller switched it off. Tokens go to the experts of `routes`, where there are any.
///
/// # Errors
/// A token outside the vocabulary, routes of another shape, or no room.
pub fn hidden_states(model: &Model, batch: &MicroBatch, routes: Option<&Routes>) -> Result<Tensor> {
    forward(model, batch, &mut context(model, batch, routes)?)
}

/// The same with routers that choose freely, and what they chose, on the host; `None` of a model without experts.
///
/// # Errors
/// As [`hidden_states`].
pub fn recorded_hidden_states(model: &Model, batch: &MicroBatch) -> Result<(Tensor, Option<Routes>)> {
    let mut context = context(model, batch, None)?.recording_routes();
    let hidden_rd = forward(model, batch, &mut context)?;
    let routes = context.take_routes()?.map(|routes| routes.to_device(Device::Cpu)).transpose()?;
    Ok((hidden_rd, routes))
}

fn forward(model: &Model, batch: &MicroBatch, context: &mut Context<'_>) -> Result<Tensor> {
    let tokens_t = Tensor::f_from_slice(&batch.tokens)?.f_to_device(model.params().device())?;
    let hidden_td = model.forward(context, &tokens_t)?;
    let rows_r = Tensor::f_from_slice(&batch.rows)?.f_to_device(hidden_td.device())?;
    Ok(hidden_td.f_index_select(0, &rows_r)?)
}

/// What a pass over `batch` knows of its tokens.
pub(crate) fn context(
    model: &Model,
    batch: &MicroBatch,
    routes: Option<&Routes>,
) -> Result<Context<'static>> {
    let (device, cp) = (model.params().device(), model.params().parallel().and_then(Parallel::cp));
    let context = Context::packed_over(&batch.segments, (model.params().kind(), device), cp)?;
    match routes {
        Some(routes) => Ok(context.replaying_routes(routes.to_device(device)?)?),
        None => Ok(context),
    }
}

/// The ids that a run begins with, where a pass begins.
pub(crate) fn embedded_tokens(model: &Model, prepared: &Prepared, run: usize) -> Result<Option<Tensor>> {
    if !model.is_start(run) {
        return Ok(None);
    }
    let own: Vec<i64> = prepared.share.tokens().iter().map(|token| prepared.batch.tokens[*token]).collect();
    Ok(Some(Tensor::f_from_slice(&own)?.f_to_device(model.params().device())?))
}

/// `(log_probs_r, entropy_r)` of the targets of `batch`, in f32 (f64 for f64 models), at the sampling `temperature`.
///
/// # Errors
/// As [`hidden_states`].
pub fn log_probs(model: &Model, batch: &MicroBatch, temperature: f64) -> Result<(Tensor, Tensor)> {
    let targets_r = Tensor::f_from_slice(&batch.targets)?.f_to_device(model.params().device())?;
    let hidden_rd = hidden_states(model, batch, None)?;
    Ok(model.head_log_probs(&hidden_rd, &targets_r, &Shaping::at(temperature))?)
}
