//! The passes of all micro-batches of a step through the runs of layers of this rank's stage, which hands on what lies
//! between stages. A model that is not in stages is one stage.

mod schedule;

use std::collections::HashMap;
use std::time::Instant;

use slime_config::Recompute;
use slime_model::ops::as_trained;
use slime_model::{Input, Model, Routes, Tape};
use slime_torch::backward_with;
use tch::Tensor;

use self::schedule::{Action, Direction, forward_only, one_forward_one_backward};
pub(crate) use self::schedule::{bubble, most_kept};
use crate::log_probs::{context, embedded_tokens};
use crate::out_of_memory::Phase;
use crate::prepared::Prepared;
use crate::trainer::{Role, Trained};
use crate::{Error, Result, Trainer};

/// Tags of messages.
const RESIDUAL: u8 = 1;
const GRADIENT: u8 = 2;

/// What the last run of a pass gives.
pub(crate) struct Hidden {
    /// The hidden states `[r, d]` after the final norm that predict this rank's rows of a micro-batch.
    pub rows_rd: Tensor,
    /// The residual `[t, d]` behind the last layer of this rank's fed tokens.
    pub residual_td: Tensor,
}

/// Which experts tokens go to in a frozen pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routers {
    /// Those that the routers choose, whatever is known.
    Free,
    /// Those that the micro-batch says, where it does.
    Replayed,
    /// Those that the routers choose; from then on the micro-batch says them.
    Recorded,
}

/// A micro-batch between its passes through a run.
struct InFlight {
    /// What the run began with, where that came from another stage.
    input_td: Option<Tensor>,
    /// What backward begins at: the loss, or what the next stage got; nothing where layers are computed again.
    root: Option<Tensor>,
    tape: Option<Tape>,
}

impl Trainer {
    /// Forward and backward pass of every micro-batch; gradients stay in the parameters, or their sums. `loss_of` turns the
    /// hidden states of the micro-batch of a number into its loss, on a last stage.
    pub(crate) fn train_batches(
        &mut self,
        role: Role,
        batches: &[Prepared],
        loss_of: &mut dyn FnMut(&mut Self, usize, &Hidden) -> Result<Tensor>,
    ) -> Result<()> {
        let stage = self.trained(role)?.model.stage();
        let mut in_flight: HashMap<(usize, usize), InFlight> = HashMap::new();
        for Action { direction, run, batch } in one_forward_one_backward(stage, batches.len()) {
            let began = Instant::now();
            let num_tokens = batches[batch].share.tokens().len();
            match direction {
                Direction::Forward => {
                    self.phase = Phase::Forward;
                    let passed = self.forward_pass(role, run, &batches[batch], |trainer, hidden| {
                        loss_of(trainer, batch, hidden)
                    })?;
                    in_flight.insert((run, batch), passed);
                    self.observation.detail("forward", began, num_tokens);
                }
                Direction::Backward => {
                    self.phase = Phase::Backward;
                    // Every forward pass comes before its backward pass in the schedule.
                    let Some(passed) = in_flight.remove(&(run, batch)) else { continue };
                    self.backward_pass(role, run, num_tokens, passed)?;
                    self.observation.detail("backward", began, num_tokens);
                    self.trained_mut(role)?.optimizer.accumulate()?;
                }
            }
        }
        Ok(())
    }

    fn forward_pass(
        &mut self,
        role: Role,
        run: usize,
        prepared: &Prepared,
        loss_of: impl FnOnce(&mut Self, &Hidden) -> Result<Tensor>,
    ) -> Result<InFlight> {
        let recompute = self.settings.train.recompute;
        let num_tokens = prepared.share.tokens().len();
        let input_td = self.received(role, run, num_tokens, Direction::Forward)?;
        let input_td = input_td.map(|input_td| input_td.set_requires_grad(true));
        let model = &self.trained(role)?.model;
        // The critic's routers choose by themselves.
        let routes = if role == Role::Actor { prepared.routes.of_run(run) } else { None };
        let (output, tape) = trained_pass(model, prepared, (run, input_td.as_ref()), routes, recompute)?;
        let Some(hidden_td) = output.hidden_td else {
            let mut output_td = output.residual_td;
            self.send(role, run, &output_td, Direction::Forward)?;
            let root = tape.is_none().then(|| {
                // Backward needs the node, not the numbers.
                output_td.f_set_data(&Tensor::f_empty([0], (output_td.kind(), output_td.device()))?)?;
                Ok::<_, Error>(output_td)
            });
            return Ok(InFlight { input_td, root: root.transpose()?, tape });
        };
        let hidden =
            Hidden { rows_rd: prepared.share.of_hidden(&hidden_td)?, residual_td: output.residual_td };
        // Where nothing before a layer is trained, its ops have no gradient to tell them that they train.
        let loss = as_trained(|| loss_of(self, &hidden))?;
        Ok(InFlight { input_td, root: Some(loss), tape })
    }

    fn backward_pass(&mut self, role: Role, run: usize, num_tokens: usize, passed: InFlight) -> Result<()> {
        let InFlight { input_td, root, tape } = passed;
        let mut grad_td = self.received(role, run, num_tokens, Direction::Backward)?;
        if let Some(root) = root {
            match grad_td.take() {
                None => root.f_backward()?,
                Some(grad_td) if root.requires_grad() => backward_with(&[&root], &[&grad_td])?,
                Some(_) => {}
            }
        }
        if let Some(tape) = tape {
            self.trained(role)?.model.backward(tape, grad_td)?;
        }
        if let Some(input_td) = input_td {
            let grad_td = input_td.f_grad()?;
            // Where the loss reads nothing of a micro-batch no gradient arrives, and the stage before waits for one.
            let grad_td = if grad_td.defined() { grad_td } else { input_td.f_detach()?.f_zeros_like()? };
            self.send(role, run, &grad_td, Direction::Backward)?;
        }
        Ok(())
    }

    /// What a run begins with in a direction; `None` where another stage has nothing to send.
    fn received(
        &mut self,
        role: Role,
        run: usize,
        num_tokens: usize,
        direction: Direction,
    ) -> Result<Option<Tensor>> {
        let began = Instant::now();
        let received = received(&self.trained(role)?.model, run, num_tokens, direction)?;
        if received.is_some() {
            self.report.stage_wait += began.elapsed();
        }
        Ok(received)
    }

    fn send(&self, role: Role, run: usize, x_td: &Tensor, direction: Direction) -> Result<()> {
        send(&self.trained(role)?.model, run, x_td, direction, false)
    }

    pub(crate) fn trained(&self, role: Role) -> Result<&Trained> {
        match role {
            Role::Actor => Ok(&self.actor),
            Role::Critic => self.critic.as_ref().ok_or(Error::Role { role: "a critic with a value head" }),
        }
    }

    fn trained_mut(&mut self, role: Role) -> Result<&mut Trained> {
        match role {
            Role::Actor => Ok(&mut self.actor),
            Role::Critic => self.critic.as_mut().ok_or(Error::Role { role: "a critic with a value head" }),
        }
    }
}

/// Passes without gradient of all micro-batches; `visit` gets the hidden states of each, on a last stage.
///
/// # Errors
/// Those of the model and of `visit`; a failed transfer.
pub(crate) fn frozen_batches(
    model: &Model,
    batches: &mut [&mut Prepared],
    routers: Routers,
    mut visit: impl FnMut(&mut Prepared, Tensor) -> Result<()>,
) -> Result<()> {
    for Action { run, batch, .. } in forward_only(model.stage(), batches.len()) {
        let prepared = &mut *batches[batch];
        let input_td = received(model, run, prepared.share.tokens().len(), Direction::Forward)?;
        let output = without_grad(|| {
            let routes = if routers == Routers::Replayed { prepared.routes.of_run(run) } else { None };
            let mut context = context(model, &prepared.batch, routes)?;
            if routers == Routers::Recorded {
                context = context.recording_routes();
            }
            let tokens_t = embedded_tokens(model, prepared, run)?;
            let output =
                model.forward_run(&mut context, run, input(tokens_t.as_ref(), input_td.as_ref())?)?;
            if routers == Routers::Recorded {
                prepared.routes.record(run, context.take_routes()?)?;
            }
            Ok::<_, Error>(output)
        })?;
        match output.hidden_td {
            Some(hidden_td) => {
                let hidden_od = prepared.share.of_hidden(&hidden_td)?;
                visit(prepared, hidden_od)?;
            }
            // A stage that is faster than the next one waits for it, where no stage has two runs to go on with.
            None => send(model, run, &output.residual_td, Direction::Forward, model.num_runs() == 1)?,
        }
    }
    Ok(())
}

/// The pass that is followed by a backward pass, as `train.recompute` asks for it.
fn trained_pass(
    model: &Model,
    prepared: &Prepared,
    (run, input_td): (usize, Option<&Tensor>),
    routes: Option<&Routes>,
    recompute: Recompute,
) -> Result<(slime_model::Output, Option<Tape>)> {
    let mut context = context(model, &prepared.batch, routes)?;
    let tokens_t = embedded_tokens(model, prepared, run)?;
    let input = input(tokens_t.as_ref(), input_td)?;
    as_trained(|| match recompute {
        Recompute::Full => {
            let (output, tape) = model.forward_taped(context, run, input)?;
            Ok((output, Some(tape)))
        }
        Recompute::Selective => Ok((model.forward_run(&mut context.recomputing_ops(), run, input)?, None)),
        Recompute::None => Ok((model.forward_run(&mut context, run, input)?, None)),
    })
}

fn input<'a>(tokens_t: Option<&'a Tensor>, input_td: Option<&Tensor>) -> Result<Input<'a>> {
    match (tokens_t, input_td) {
        (Some(tokens_t), None) => Ok(Input::Tokens(tokens_t)),
        (_, Some(input_td)) => Ok(Input::Residual(input_td.shallow_clone())),
        (None, None) => Err(Error::Role { role: "a stage before this one" }),
    }
}

/// The stage behind this one, or before it; the first is behind the last where stages have several runs.
fn neighbour(model: &Model, is_after: bool) -> usize {
    let stage = model.stage();
    let num = stage.pipeline.num_stages;
    if is_after { (stage.rank + 1) % num } else { (stage.rank + num - 1) % num }
}

fn received(model: &Model, run: usize, num_tokens: usize, direction: Direction) -> Result<Option<Tensor>> {
    let (is_edge, tag) = match direction {
        Direction::Forward => (model.is_start(run), RESIDUAL),
        Direction::Backward => (model.is_end(run), GRADIENT),
    };
    let (Some(parallel), false) = (model.params().parallel(), is_edge) else { return Ok(None) };
    let size = [model.num_own_rows(num_tokens) as i64, model.config().hidden_size as i64];
    let options = (model.params().kind(), model.params().device());
    let from = neighbour(model, direction == Direction::Backward);
    Ok(Some(parallel.pp().recv(&size, options, from, tag)?))
}

fn send(model: &Model, run: usize, x_td: &Tensor, direction: Direction, waits: bool) -> Result<()> {
    let (is_edge, tag) = match direction {
        Direction::Forward => (model.is_end(run), RESIDUAL),
        Direction::Backward => (model.is_start(run), GRADIENT),
    };
    let (Some(parallel), false) = (model.params().parallel(), is_edge) else { return Ok(()) };
    let (pp, to) = (parallel.pp(), neighbour(model, direction == Direction::Forward));
    let sent = if waits { pp.send(x_td, to, tag) } else { pp.send_later(x_td, to, tag) };
    Ok(sent?)
}

pub(crate) fn without_grad<T>(f: impl FnOnce() -> T) -> T {
    tch::no_grad(|| as_trained(f))
}
