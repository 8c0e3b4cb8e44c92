//! A forward pass that keeps the residual before every layer and nothing else, and the backward pass that computes the
//! layers again, one by one (arXiv 1604.06174). Suffixes: t tokens, d hidden size.

use slime_torch::backward_with;
use tch::Tensor;

use crate::ops::add_norm::add_norm;
use crate::ops::as_trained;
use crate::{Context, Model, Result};

/// What a forward pass leaves for [`Model::backward`].
#[derive(Debug)]
pub struct Tape {
    context: Context<'static>,
    cos_sin: (Tensor, Tensor),
    /// The embedded tokens `[t, d]`, under autograd.
    embedded_td: Tensor,
    /// The residual `[t, d]` before every layer.
    residuals: Vec<Tensor>,
    /// The residual behind the last layer, where the rest of the graph begins.
    last_td: Tensor,
}

impl Model {
    /// What [`Self::forward_with_residual`] gives, to the bit, with the tape for [`Self::backward`], which has to follow the
    /// backward pass of what was computed from the hidden states. Every rank of a split model calls both.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_taped(
        &self,
        mut context: Context<'static>,
        tokens_t: &Tensor,
    ) -> Result<((Tensor, Tensor), Tape)> {
        let (cos_sin, embedded_td) = self.begin(&context, tokens_t)?;
        context.routing().begin_tape();
        let mut residuals = Vec::with_capacity(self.layers().len());
        let mut x_td = embedded_td.f_detach()?;
        tch::no_grad(|| {
            as_trained(|| {
                for layer in self.layers() {
                    residuals.push(x_td.shallow_clone());
                    let (x, delta) = layer.forward(&mut context, x_td.shallow_clone(), None, &cos_sin)?;
                    x_td = x.f_add(&delta)?;
                }
                Ok::<_, crate::Error>(())
            })
        })?;
        let last_td = x_td.set_requires_grad(self.is_trained_before(&embedded_td, residuals.len()));
        let (weight_d, eps, workspace) = (self.final_norm(), self.config().rms_norm_eps, context.workspace());
        let (_, hidden_td) = add_norm(&workspace, last_td.shallow_clone(), None, weight_d, eps)?;
        let hidden_td = self.gathered(&hidden_td, context.num_tokens())?;
        let outputs = (last_td.shallow_clone(), hidden_td);
        Ok((outputs, Tape { context, cos_sin, embedded_td, residuals, last_td }))
    }

    /// Gradients of layers and embedding, from that of the last residual.
    ///
    /// # Errors
    /// A failed collective, or no room.
    pub fn backward(&self, tape: Tape) -> Result<()> {
        let Tape { mut context, cos_sin, embedded_td, mut residuals, last_td } = tape;
        context.routing().replay_tape();
        let gradient = |x_td: &Tensor| {
            let grad_td = x_td.f_grad()?;
            // What no row reads has none; the collectives of its layers run all the same.
            if grad_td.defined() { Ok(grad_td) } else { x_td.f_zeros_like() }
        };
        let mut grad_td = gradient(&last_td)?;
        drop(last_td);
        for (at, layer) in self.layers().iter().enumerate().rev() {
            let Some(x_td) = residuals.pop().filter(|_| self.is_trained_before(&embedded_td, at + 1)) else {
                return Ok(());
            };
            let x_td = x_td.set_requires_grad(self.is_trained_before(&embedded_td, at));
            let (sum_td, delta_td) =
                as_trained(|| layer.forward(&mut context, x_td.shallow_clone(), None, &cos_sin))?;
            let outputs: Vec<&Tensor> =
                [&sum_td, &delta_td].into_iter().filter(|output| output.requires_grad()).collect();
            backward_with(&outputs, &vec![&grad_td; outputs.len()])?;
            if x_td.requires_grad() {
                grad_td = gradient(&x_td)?;
            }
        }
        if embedded_td.requires_grad() {
            backward_with(&[&embedded_td], &[&grad_td])?;
        }
        Ok(())
    }

    /// Whether anything before layer `at` has a gradient.
    fn is_trained_before(&self, embedded_td: &Tensor, at: usize) -> bool {
        let is_trained = |at: usize| {
            let prefix = format!("layers.{at}.");
            let mut own = self.params().trained().filter(|(spec, _)| spec.name.starts_with(&prefix));
            own.any(|(_, tensor)| tensor.requires_grad())
        };
        embedded_td.requires_grad() || (0..at).any(is_trained)
    }
}
