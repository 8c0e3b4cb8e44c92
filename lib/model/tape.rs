//! A pass that keeps the residual before every layer and nothing else, and the backward pass that computes the layers again,
//! one by one (arXiv 1604.06174). Suffixes: t tokens, d hidden size.

use slime_torch::backward_with;
use tch::Tensor;

use crate::ops::as_trained;
use crate::run::{Input, Output};
use crate::{Context, Error, Model, Result};

/// What a forward pass leaves for [`Model::backward`].
#[derive(Debug)]
pub struct Tape {
    context: Context<'static>,
    cos_sin: (Tensor, Tensor),
    run: usize,
    /// What the run began with `[t, d]`, under autograd.
    start_td: Tensor,
    /// The residual `[t, d]` before every layer.
    residuals: Vec<Tensor>,
    /// The residual behind the last layer of the model, where the rest of the graph begins.
    last_td: Option<Tensor>,
}

impl Model {
    /// What [`Self::forward_run`] gives, to the bit, with the tape for [`Self::backward`], which has to follow the backward
    /// pass of what was computed from the hidden states. Every rank of a split model calls both.
    ///
    /// # Errors
    /// As [`Self::forward_run`].
    pub fn forward_taped(
        &self,
        mut context: Context<'static>,
        run: usize,
        input: Input<'_>,
    ) -> Result<(Output, Tape)> {
        let (cos_sin, start_td) = self.enter(&context, input)?;
        context.routing().begin_tape();
        let (first, layers) = self.layers_of(run)?;
        let mut residuals = Vec::with_capacity(layers.len());
        let mut x_td = start_td.f_detach()?;
        tch::no_grad(|| {
            as_trained(|| {
                for layer in layers {
                    residuals.push(x_td.shallow_clone());
                    let (x, delta) = layer.forward(&mut context, x_td.shallow_clone(), None, &cos_sin)?;
                    x_td = x.f_add(&delta)?;
                }
                Ok::<_, Error>(())
            })
        })?;
        let last_td = x_td.set_requires_grad(self.is_trained_before(&start_td, first, residuals.len()));
        let output = self.leave(&context, run, last_td.shallow_clone(), None)?;
        // What another stage goes on with comes back as a gradient.
        let last_td = output.hidden_td.is_some().then_some(last_td);
        Ok((output, Tape { context, cos_sin, run, start_td, residuals, last_td }))
    }

    /// Gradients of the layers and of what the run began with. They start from `grad_td`, that of the residual behind the
    /// run, or, where there is none, from what backward has left there.
    ///
    /// # Errors
    /// A failed collective, or no room.
    pub fn backward(&self, tape: Tape, grad_td: Option<Tensor>) -> Result<()> {
        let Tape { mut context, cos_sin, run, start_td, mut residuals, last_td } = tape;
        context.routing().replay_tape();
        let gradient = |x_td: &Tensor| {
            let grad_td = x_td.f_grad()?;
            // What no row reads has none; the collectives of its layers run all the same.
            if grad_td.defined() { Ok(grad_td) } else { x_td.f_zeros_like() }
        };
        let mut grad_td = match (grad_td, last_td) {
            (Some(grad_td), _) => grad_td,
            (None, Some(last_td)) => gradient(&last_td)?,
            (None, None) => return Err(Error::Context { what: "gradients of a run", expected: 1, got: 0 }),
        };
        let (first, layers) = self.layers_of(run)?;
        for (at, layer) in layers.iter().enumerate().rev() {
            let Some(x_td) = residuals.pop().filter(|_| self.is_trained_before(&start_td, first, at + 1))
            else {
                return Ok(());
            };
            let x_td = x_td.set_requires_grad(self.is_trained_before(&start_td, first, at));
            let (sum_td, delta_td) =
                as_trained(|| layer.forward(&mut context, x_td.shallow_clone(), None, &cos_sin))?;
            let outputs: Vec<&Tensor> =
                [&sum_td, &delta_td].into_iter().filter(|output| output.requires_grad()).collect();
            backward_with(&outputs, &vec![&grad_td; outputs.len()])?;
            if x_td.requires_grad() {
                grad_td = gradient(&x_td)?;
            }
        }
        if start_td.requires_grad() {
            backward_with(&[&start_td], &[&grad_td])?;
        }
        Ok(())
    }

    /// Whether anything of a run has a gradient before its layer number `at`; its first is number `first` of this rank.
    fn is_trained_before(&self, start_td: &Tensor, first: usize, at: usize) -> bool {
        start_td.requires_grad() || (first..first + at).any(|at| self.is_trained(at))
    }
}
