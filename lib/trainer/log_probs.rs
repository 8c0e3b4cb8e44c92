//! A forward pass over a micro-batch: hidden states of its rows, log-probs and entropy of their targets.

use slime_config::Recompute;
use slime_model::{Context, Model, Routes, Shaping, Tape};
use tch::{Device, Tensor};

use crate::Result;
use crate::micro_batch::MicroBatch;

/// The hidden states `[r, d]` after the final norm that predict the rows of `batch`; under autograd unless the caller
/// switched it off. Tokens go to the experts of `routes`, where there are any.
///
/// # Errors
/// A token outside the vocabulary, routes of another shape, or no room.
pub fn hidden_states(model: &Model, batch: &MicroBatch, routes: Option<&Routes>) -> Result<Tensor> {
    Ok(run(model, batch, &mut context(model, batch, routes)?)?.0)
}

/// A forward pass that is followed by a backward pass.
pub(crate) struct Pass {
    /// As [`hidden_states`].
    pub hidden_rd: Tensor,
    /// The residual `[t, d]` behind the last layer of every fed token.
    pub residual_td: Tensor,
    /// Where layers are computed again: what [`Model::backward`] goes on with.
    pub tape: Option<Tape>,
}

/// The pass that `train.recompute` asks for.
///
/// # Errors
/// As [`hidden_states`].
pub(crate) fn trained_pass(
    model: &Model,
    batch: &MicroBatch,
    routes: Option<&Routes>,
    recompute: Recompute,
) -> Result<Pass> {
    let mut context = context(model, batch, routes)?;
    if recompute == Recompute::Full {
        let device = model.params().device();
        let tokens_t = Tensor::f_from_slice(&batch.tokens)?.f_to_device(device)?;
        let rows_r = Tensor::f_from_slice(&batch.rows)?.f_to_device(device)?;
        let ((residual_td, hidden_td), tape) = model.forward_taped(context, &tokens_t)?;
        return Ok(Pass { hidden_rd: hidden_td.f_index_select(0, &rows_r)?, residual_td, tape: Some(tape) });
    }
    if recompute == Recompute::Selective {
        context = context.recomputing_ops();
    }
    let (hidden_rd, residual_td) = run(model, batch, &mut context)?;
    Ok(Pass { hidden_rd, residual_td, tape: None })
}

/// The same with routers that choose freely, and what they chose, on the host; `None` of a model without experts.
///
/// # Errors
/// As [`hidden_states`].
pub fn recorded_hidden_states(model: &Model, batch: &MicroBatch) -> Result<(Tensor, Option<Routes>)> {
    let mut context = context(model, batch, None)?.recording_routes();
    let (hidden_rd, _) = run(model, batch, &mut context)?;
    let routes = context.take_routes()?.map(|routes| routes.to_device(Device::Cpu)).transpose()?;
    Ok((hidden_rd, routes))
}

fn context(model: &Model, batch: &MicroBatch, routes: Option<&Routes>) -> Result<Context<'static>> {
    let device = model.params().device();
    let context = Context::packed(&batch.segments, model.params().kind(), device)?;
    match routes {
        Some(routes) => Ok(context.replaying_routes(routes.to_device(device)?)?),
        None => Ok(context),
    }
}

/// The hidden states of the rows, and the residual of all tokens.
fn run(model: &Model, batch: &MicroBatch, context: &mut Context<'_>) -> Result<(Tensor, Tensor)> {
    let device = model.params().device();
    let tensor = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
    let (residual_td, hidden_td) = model.forward_with_residual(context, &tensor(&batch.tokens)?)?;
    Ok((hidden_td.f_index_select(0, &tensor(&batch.rows)?)?, residual_td))
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
